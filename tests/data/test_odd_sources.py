"""Sources as people have them: odd tables, datasets of any kind, names that clash; nothing is lost without a word."""

from __future__ import annotations

import datetime
import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from tests.data.making import jpeg

from paceline.cli.data_convert import command
from paceline.data.convert import Options, convert
from paceline.data.loader import Loader
from paceline.data.sharded import ShardedDataset
from paceline.data.sources import BadSample
from paceline.data.sources.dataset import DatasetSource
from paceline.data.sources.found import source_of
from paceline.data.sources.image_folder import image_folder
from paceline.errors import UsageError


def made_of(source, dest, **how) -> ShardedDataset:
    convert(source, dest, Options(seed=None, verbatim=True, **how), 1, lambda done, whole: None)
    return ShardedDataset(dest)


def kinds(dataset) -> dict[str, str]:
    return {column.name: column.kind for column in dataset.contents.columns}


def values(dataset, name) -> list:
    return dataset.numbers(name, dataset.places(np.arange(len(dataset)))).tolist()


def table(folder, labels) -> object:
    for number, _ in enumerate(labels):
        (folder / f"{number}.jpg").write_bytes(jpeg(16, 16, number))
    path = folder / "labels.csv"
    path.write_text("path,label\n" + "".join(f"{number}.jpg,{label}\n" for number, label in enumerate(labels)))
    return path


@pytest.mark.parametrize(
    "labels, kept, kind, classes",
    [
        (["-1", "2"], [-1, 2], "int", []),
        (["1.5", "-2e1"], [1.5, -20.0], "float", []),
        (["b", "1"], [1, 0], "int", ["1", "b"]),
    ],
)
def test_labels_of_a_table_are_what_they_say(tmp_path, labels, kept, kind, classes):
    found = made_of(source_of(table(tmp_path, labels), None), tmp_path / "out")
    assert kinds(found)["label"] == kind and values(found, "label") == kept
    assert list(found.contents.classes) == classes


@pytest.mark.parametrize(
    "text, said",
    [
        (b"path,label\n0.jpg,1\n1.jpg\n", "line 3"),
        (b"path,label\n0.jpg,caf\xe9\n", "is not UTF-8 text"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path, text, said):
    path = table(tmp_path, ["1", "2"])
    path.write_bytes(text)
    with pytest.raises(UsageError, match=said):
        source_of(path, None)


def test_what_is_not_there_is_told_before_anything_is_written(tmp_path):
    path = table(tmp_path, ["1", "2", "3"])
    (tmp_path / "2.jpg").unlink()
    with pytest.raises(BadSample, match="2.jpg cannot be read"):
        made_of(source_of(path, None), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(made_of(source_of(path, None), tmp_path / "out", on_error="skip")) == 2


def test_links_to_nothing_are_bad_samples(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "0.jpg").write_bytes(jpeg(16, 16))
    (tmp_path / "in" / "a" / "1.jpg").symlink_to("/nowhere")
    assert len(made_of(image_folder(tmp_path / "in"), tmp_path / "out", on_error="skip")) == 1


def test_folders_without_pictures_are_named(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "b").mkdir()
    (tmp_path / "in" / "b" / "0.jpg").write_bytes(jpeg(16, 16))
    done = CliRunner().invoke(command, [str(tmp_path / "in"), str(tmp_path / "out")], standalone_mode=False)
    assert "these folders contain no images but count as classes, as in torchvision: a" in done.stderr


def test_a_bad_sample_is_no_reason_to_begin_anew(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    for number in range(6):
        (tmp_path / "in" / "a" / f"{number}.jpg").write_bytes(jpeg(64, 64, number))
    source = image_folder(tmp_path / "in")
    (tmp_path / "in" / "a" / "5.jpg").unlink()
    with pytest.raises(BadSample):
        convert(source, tmp_path / "out", Options(seed=None, shard_bytes=4096), 1, lambda done, whole: None)
    skipping = Options(seed=None, shard_bytes=4096, on_error="skip")
    found = convert(source, tmp_path / "out", skipping, 1, lambda done, whole: None)
    assert found.resumed and found.contents.samples == 5 and len(found.skipped) == 1


class Own:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        if isinstance(self.samples[number], Exception):
            raise self.samples[number]
        return self.samples[number]


class Listed(Own):
    def __class_getitem__(cls, number):
        raise TypeError("it is a class")

    def __init__(self):
        super().__init__([1, 2])


def own_source(monkeypatch, samples, columns=()) -> DatasetSource:
    monkeypatch.setattr(sys.modules[__name__], "own", samples, raising=False)
    return DatasetSource(f"{__name__}:own", columns, images="png")


def test_two_pictures_of_a_sample_are_two_columns(tmp_path, monkeypatch):
    picture, mask = Image.new("RGB", (8, 8), (9, 8, 7)), Image.new("L", (8, 8), 200)
    found = made_of(own_source(monkeypatch, Own([(picture, mask)])), tmp_path / "out")
    assert kinds(found) == {"image": "image", "part1": "image"}
    (place,) = found.places(np.array([0]))
    assert found.payload("image", place) != found.payload("part1", place)


def test_single_numbers_of_tensors_are_numbers(tmp_path, monkeypatch):
    import torch

    sample = torch.zeros(3), torch.tensor(4), torch.tensor(0.5), np.bool_(True)
    found = made_of(own_source(monkeypatch, Own([sample])), tmp_path / "out")
    assert kinds(found) == {"part0": "array", "label": "int", "part2": "float", "part3": "int"}
    assert values(found, "label") == [4]


def test_a_class_is_made_and_nothing_has_no_samples(tmp_path):
    assert len(DatasetSource(f"{__name__}:Listed")) == 2
    with pytest.raises(UsageError, match="no samples"):
        made_of(DatasetSource("builtins:list"), tmp_path / "out")


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_bad_samples_of_a_dataset_are_skipped_wherever_they_are(tmp_path, monkeypatch, bad):
    samples = [(number, float(number)) for number in range(4)]
    samples[bad] = ValueError("boom")
    found = made_of(own_source(monkeypatch, Own(samples)), tmp_path / "out", on_error="skip")
    assert values(found, "part0") == [number for number in range(4) if number != bad]


@pytest.mark.parametrize(
    "value, said",
    [
        (2**70, "64 bits"),
        (Image.new("CMYK", (4, 4)), "mode CMYK"),
        ({1: "a number as key"}, "would not be the same in JSON"),
        ({1, 2}, "a sample has a set"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_sample(tmp_path, monkeypatch, value, said):
    source = own_source(monkeypatch, Own([{"x": value}]))
    with pytest.raises(BadSample, match=rf"own\[0\].*{said}"):
        made_of(source, tmp_path / "out")


def test_tensors_of_kinds_that_numpy_lacks(tmp_path, monkeypatch):
    import torch

    with pytest.raises(BadSample, match="BFloat16"):
        made_of(own_source(monkeypatch, Own([torch.zeros(2, dtype=torch.bfloat16)])), tmp_path / "out")


def test_a_bad_first_sample_is_a_message(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_bad_set.py").write_text("sets = [{'a': set()}]\n")
    arguments = ["--dataset", "my_bad_set:sets", str(tmp_path / "out")]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(done.exception, UsageError) and "--on-error skip" in str(done.exception)


def test_names_that_would_clash_are_told():
    from paceline.data.kinds import column_names

    assert column_names(["y", "target"], lambda name: "label") == {"y": "y", "target": "target"}
    with pytest.raises(UsageError, match=r"'x/y' and 'x_y' would both become the column x_y"):
        column_names(["x/y", "x_y"])


def write_parquet(path, **columns) -> object:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_is_read_by_its_schema(tmp_path):
    moment = datetime.datetime(2026, 1, 2)
    path = write_parquet(
        tmp_path / "a.parquet", label=[None, 1], when=[moment] * 2, more=[{"a": [1]}] * 2, yes=[True, False]
    )
    found = made_of(source_of(path, None), tmp_path / "out")
    assert kinds(found) == {"label": "int", "when": "text", "more": "text", "yes": "int"}
    assert [batch["label"] for batch in Loader(found, 2)] == [[None, 1]]
    (place,) = found.places(np.array([0]))
    assert found.payload("when", place) == b"2026-01-02 00:00:00"
    assert json.loads(found.payload("more", place)) == {"a": [1]}


def test_lists_of_parquet_that_are_no_array(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", boxes=[[[1, 2], [3]]])
    with pytest.raises(BadSample, match="row 0: boxes"):
        made_of(source_of(path, None), tmp_path / "out")


def test_names_of_labels_that_hugging_face_has_noted(tmp_path):
    import pyarrow
    import pyarrow.parquet

    noted = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    made = pyarrow.table({"label": [1, 0]}).replace_schema_metadata({"huggingface": json.dumps(noted)})
    pyarrow.parquet.write_table(made, tmp_path / "a.parquet")
    assert list(made_of(source_of(tmp_path / "a.parquet", None), tmp_path / "out").contents.classes) == ["cat", "dog"]


def test_text_and_truth_of_hdf5(tmp_path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("name", data=["ä", "b"], dtype=h5py.string_dtype())
        file["yes"] = np.array([True, False])
    found = made_of(source_of(tmp_path / "a.h5", None), tmp_path / "out")
    assert kinds(found) == {"name": "text", "yes": "int"}
    assert found.payload("name", found.places(np.array([0]))[0]) == "ä".encode()


@pytest.mark.parametrize("kind, path", [("images", "a.csv"), ("table", "."), ("hdf5", "."), ("npy", ".")])
def test_a_format_that_it_cannot_be(tmp_path, kind, path):
    (tmp_path / "a.csv").write_text("path,label\n")
    with pytest.raises(UsageError, match=r"needs a f|no \.npy files"):
        len(source_of(tmp_path / path, kind))


def png_of(image: Image.Image) -> bytes:
    import io

    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_a_picture_and_its_mask_in_a_tar(tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for suffix, data in (("jpg", jpeg(16, 16)), ("png", png_of(Image.new("L", (16, 16), 3)))):
            head = tarfile.TarInfo(f"one.{suffix}")
            head.size = len(data)
            archive.addfile(head, io.BytesIO(data))
    found = made_of(source_of(tmp_path / "a.tar", None), tmp_path / "out")
    assert kinds(found) == {"jpg": "image", "png": "image"}
    with tarfile.open(found.file(0)) as archive:
        assert sorted(archive.getnames()) == ["0000000000000.jpg", "0000000000000.png"]


def test_pictures_of_two_columns_have_files_of_their_own(tmp_path, monkeypatch):
    import tarfile

    pictures = {"left": Image.new("RGB", (8, 8)), "right": Image.new("RGB", (8, 8))}
    found = made_of(own_source(monkeypatch, Own([pictures])), tmp_path / "out")
    with tarfile.open(found.file(0)) as archive:
        assert len(set(archive.getnames())) == 2


def test_lists_of_tfrecord_have_any_length_and_arrays_come_back(tmp_path):
    from paceline.data import tfrecord
    from paceline.data.export import export
    from paceline.data.kinds import array_of

    rows = [[0.5, 1.5], [2.5], []]
    kept = array_of(np.arange(3)).data
    with open(tmp_path / "a.tfrecord", "wb") as file:
        for row in rows:
            file.write(tfrecord.framed(tfrecord.encoded({"boxes": row, "kept": [kept]})))
    found = made_of(source_of(tmp_path / "a.tfrecord", None), tmp_path / "out")
    assert kinds(found) == {"boxes": "array", "kept": "array"}
    export(found, tmp_path / "again", "tfrecord", lambda done, whole: None)
    again = made_of(source_of(tmp_path / "again", None), tmp_path / "more")
    for place in again.places(np.arange(3)):
        assert again.payload("kept", place) == kept
        assert again.payload("boxes", place) == found.payload("boxes", place)
