"""Sources as people have them: odd tables, datasets of any kind, names that clash; nothing is lost without a word."""

from __future__ import annotations

import datetime
import json
import sys
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from tests.data.making import jpeg

from paceline.cli.data.convert import command
from paceline.core.errors import UsageError
from paceline.data.batches.batches import ShardedSamples
from paceline.data.convert.convert import Options, convert
from paceline.data.convert.writer import Writer
from paceline.data.format import tfrecord
from paceline.data.loader.loader import Loader
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources import BadSample
from paceline.data.sources.dataset import DatasetSource
from paceline.data.sources.found import source_of
from paceline.data.sources.image_folder import image_folder


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
        (["01", "1", "1"], [0, 1, 1], "int", ["01", "1"]),
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
        (b"path,label\n0.jpg,a\n1.jpg,a \n", "'a' and 'a ' differ only in spaces"),
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


@pytest.mark.parametrize("first", [{"x": 1}, (1, "a"), 1])
def test_none_is_no_sample(tmp_path, monkeypatch, first):
    source = own_source(monkeypatch, Own([first, None]))
    with pytest.raises(BadSample, match=r":own\[1\] is None"):
        made_of(source, tmp_path / "out")
    assert len(made_of(source, tmp_path / "out", on_error="skip")) == 1


def test_images_that_no_file_can_hold_are_given_as_arrays(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "own", Own([Image.new("F", (4, 4))]), raising=False)
    with pytest.raises(UsageError, match="mode F, which neither PNG nor JPEG can hold; return their pixels as arrays"):
        _ = DatasetSource(f"{__name__}:own").columns


def test_options_that_a_dataset_has_no_use_for_are_told(monkeypatch):
    named = own_source(monkeypatch, Own([{"x": 1, "y": 2}]), columns=("y", "x"))
    with pytest.raises(UsageError, match=r"--columns y,x names the parts of tuples, and .*own\[0\] is a dict"):
        _ = named.columns
    pixels = own_source(monkeypatch, Own([{"x": np.zeros((4, 4, 3), np.uint8)}]))
    assert [note for note in pixels.notes if "--images png has no effect" in note]
    assert not own_source(monkeypatch, Own([Image.new("RGB", (4, 4))])).notes


def test_a_column_without_a_value_in_the_first_samples_is_told_with_the_way_out(monkeypatch):
    source = own_source(monkeypatch, Own([{"x": 1, "late": None}] * 16 + [{"x": 1, "late": 2}]))
    with pytest.raises(UsageError, match="only None in late of the first 16 samples.*put a sample with a value among"):
        _ = source.columns


def test_names_of_labels_are_found_below_a_subset_and_in_features(monkeypatch):
    import torch

    samples = Own([(1, 0), (2, 1)])
    samples.classes = ["cat", "dog"]
    assert own_source(monkeypatch, torch.utils.data.Subset(samples, [1])).classes == ["cat", "dog"]
    datasets = pytest.importorskip("datasets")
    labels = datasets.Features({"label": datasets.ClassLabel(names=["O", "B"])})
    assert own_source(monkeypatch, datasets.Dataset.from_dict({"label": [0, 1]}, features=labels)).classes == ["O", "B"]


@pytest.mark.parametrize("names", [["s_0", "s_1", "s_2"], [f"{number}" for number in range(8)] + ["labels"]])
def test_one_npy_file_for_each_sample_is_not_taken_for_columns(tmp_path, names):
    for name in names:
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 2)))
    with pytest.raises(UsageError, match="like one file for each sample"):
        _ = source_of(tmp_path, None).columns


def test_numbered_columns_are_columns(tmp_path):
    for name in ("x1", "x2", "label"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 2)))
    assert {column.name for column in source_of(tmp_path, None).columns} == {"x1", "x2", "label"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["0.npz", "1.npz"], "of .npz files, one is a data set"),
        (["train.jsonl", "README.md"], "take --format jsonl"),
        (["deeper/0.parquet"], "files of other formats must be in the folder itself"),
    ],
)
def test_a_folder_without_images_says_what_to_do_with_the_files_in_it(tmp_path, files, said):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
    with pytest.raises(UsageError, match=said):
        source_of(tmp_path, None)


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
    from paceline.data.format.column_kinds import column_names

    assert column_names(["y", "target"], lambda name: "label") == {"y": "y", "target": "target"}
    assert column_names(["", "x"]) == {"": "unnamed", "x": "x"}  # as of the index that pandas writes to a CSV file
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
    assert kinds(found) == {"label": "int", "when": "text", "more": "json", "yes": "int"}
    assert [batch["label"] for batch in Loader(found, 2)] == [[None, 1]]
    (place,) = found.places(np.array([0]))
    assert found.payload("when", place) == b"2026-01-02 00:00:00"
    assert json.loads(found.payload("more", place)) == {"a": [1]}


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


def test_a_list_of_tfrecord_may_begin_with_one_number(tmp_path):
    with open(tmp_path / "a.tfrecord", "wb") as file:
        for row in ([7], [], [1, 2]):
            file.write(tfrecord.framed(tfrecord.encoded({"ids": row, "one": [5]})))
    rows = rows_of(source_of(tmp_path / "a.tfrecord", None), tmp_path / "out")
    assert [(row["ids"].tolist(), row["ids"].dtype, row["one"]) for row in rows] == [
        (ids, np.int64, 5) for ids in ([7], [], [1, 2])
    ]


def test_lists_of_tfrecord_have_any_length_and_arrays_come_back(tmp_path):
    from paceline.data.convert.export import export
    from paceline.data.format import tfrecord
    from paceline.data.format.column_kinds import array_of

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


def rows_of(source, dest) -> list[dict]:
    """The samples as a loader gives them, converted in their order."""
    made = made_of(source, dest)
    samples = ShardedSamples(made, made.contents.columns, None, exact=True)
    return [samples[number] for number in range(len(samples))]


def sounds(folder, text, count=2) -> object:
    for number in range(count):
        (folder / f"{number}.wav").write_bytes(b"RIFF" + bytes([number]))
    (folder / "a.csv").write_text(text)
    return folder / "a.csv"


@pytest.mark.parametrize(
    "cells",
    [
        ["12345678901234567890", "12345678901234567891"],
        ["9223372036854775808", ""],
        ["1" * 5000, ""],
        ["9007199254740993", "1.5"],
        ["9007199254740993.0", "1"],
        ["1e400", "2.5"],
        ["1e-400", "2.5"],
        ["-0.0007E-330", ""],
        ["007", "1.5"],
        ["a" * 200_000, ""],
    ],
)
def test_cells_that_a_number_would_change_stay_text(tmp_path, cells):
    path = sounds(tmp_path, f"path,x\n0.wav,{cells[0]}\n1.wav,{cells[1]}\n")
    assert [row["x"] for row in rows_of(source_of(path, None), tmp_path / "out")] == cells


@pytest.mark.parametrize(("cell", "number"), [("0e-400", 0.0), ("-0.00", -0.0), ("5e-324", 5e-324)])
def test_cells_of_zero_and_of_small_numbers_are_numbers(tmp_path, cell, number):
    path = sounds(tmp_path, f"path,x\n0.wav,{cell}\n1.wav,2.5\n")
    assert [row["x"] for row in rows_of(source_of(path, None), tmp_path / "out")] == [number, 2.5]


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**18 + 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("beside", ["", " ", "1"])
def test_whole_numbers_of_64_bits_stay_exact_beside_an_empty_cell(tmp_path, number, beside):
    path = sounds(tmp_path, f"path,x\n0.wav,{number}\n1.wav,{beside}\n")
    rows = rows_of(source_of(path, None), tmp_path / "out")
    assert [row["x"] for row in rows] == [number, int(beside) if beside.strip() else None]
    ((first, _),) = [batch["x"] for batch in Loader(tmp_path / "out", 2, columns=["x"])]
    assert int(first) == number


def test_a_table_with_a_class_and_a_label_keeps_both(tmp_path):
    path = sounds(tmp_path, "path,class,label\n0.wav,a,1\n1.wav,b,2\n")
    rows = rows_of(source_of(path, None), tmp_path / "out")
    assert [(row["class"], row["label"]) for row in rows] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    "text, said",
    [
        ("path,x,y\n0.wav,1,2\n1.wav,3\n", "fewer cells"),
        ("path,path\n0.wav,1.wav\n", "two columns called"),
        ('path,x\n0.wav,"a\n1.wav,b\n', "cannot be read as CSV"),  # the quote takes in the second row
    ],
)
def test_a_table_that_would_lose_cells_is_refused(tmp_path, text, said):
    with pytest.raises(UsageError, match=said):
        source_of(sounds(tmp_path, text), None)


def parquet_folder(folder, *tables) -> object:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for number, columns in enumerate(tables):
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{number}.parquet")
    return folder


def test_parquet_files_of_several_schemas_lose_nothing(tmp_path):
    path = parquet_folder(tmp_path / "in", {"a": [1]}, {"a": [2.75], "b": ["x"]})
    assert rows_of(source_of(path, None), tmp_path / "out") == [{"a": 1.0, "b": None}, {"a": 2.75, "b": "x"}]
    other = parquet_folder(tmp_path / "other", {"a": [1]}, {"a": ["x"]})
    with pytest.raises(UsageError, match="columns of different types"):
        source_of(other, None).columns  # noqa: B018


def test_lists_and_structs_of_parquet_keep_their_types(tmp_path):
    import pyarrow

    columns = {
        "small": pyarrow.array([[1, 2], []], pyarrow.list_(pyarrow.uint8())),
        "names": [["a\0", "b"], []],
        "more": [{"x": [1.5, None]}, None],
        "when": pyarrow.array([1234567890123456789, None], pyarrow.timestamp("ns")),
    }
    first, second = rows_of(source_of(parquet_folder(tmp_path / "in", columns), None), tmp_path / "out")
    assert (first["small"].dtype, first["small"].tolist(), second["small"].shape) == (np.uint8, [1, 2], (0,))
    assert (first["names"], first["more"], second["more"]) == (["a\0", "b"], {"x": [1.5, None]}, None)
    assert first["when"] == "2009-02-13 23:31:30.123456789"


@pytest.mark.parametrize(
    "column, said",
    [
        ([[b"a\0", b"b"]], "bytes inside a list"),
        ([{"x": float("nan")}], "NaN or an infinity, which JSON cannot store"),
        ([{"bytes": b"x", "path": "a", "rights": "mine"}], "bytes inside a list or a struct"),
        ([[1, None]], "a missing value"),
    ],
)
def test_values_of_parquet_that_would_change_are_refused(tmp_path, column, said):
    with pytest.raises(BadSample, match=said):
        made_of(source_of(parquet_folder(tmp_path / "in", {"a": column}), None), tmp_path / "out")


def test_paths_and_class_names_of_parquet_that_are_not_kept_are_told(tmp_path):
    import pyarrow
    import pyarrow.parquet

    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    lists = {"tags": {"feature": label, "_type": "List"}, "older": [label]}
    noted = {"info": {"features": {"fine": label, **lists}}}
    columns = {"fine": [1], "tags": [[1]], "older": [[0]], "img": [{"bytes": jpeg(8, 8), "path": "a.jpg"}]}
    made = pyarrow.table(columns).replace_schema_metadata({"huggingface": json.dumps(noted)})
    pyarrow.parquet.write_table(made, tmp_path / "a.parquet")
    told = source_of(tmp_path / "a.parquet", None).notes
    assert [line.split("column ")[1].split()[0] for line in told] == ["img", "fine", "tags", "older"]


def test_files_of_a_folder_that_are_not_converted_are_told(tmp_path):
    path = parquet_folder(tmp_path / "in", {"a": [1]}, {"a": [2]})
    (path / "0.parquet").rename(path / "0.PARQUET")
    (path / "below").mkdir()
    (path / "1.parquet").rename(path / "below" / "1.parquet")
    (path / "x.jpg").write_bytes(jpeg(8, 8))
    source = source_of(path, None)
    assert len(source) == 1
    assert source.notes == [f"2 files of {path} are not converted: 1 .jpg, 1 .parquet in folders below"]


def test_text_in_linked_folders_is_read_and_other_files_are_told(tmp_path):
    from paceline.data.sources.text import notes, text_files

    for name in ("in", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    (tmp_path / "in" / "b.html").write_text("more")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    assert [path.read_text() for path in text_files(tmp_path / "in")] == ["in", "elsewhere"]
    assert notes(tmp_path / "in") == [f"1 files of {tmp_path / 'in'} are not converted: 1 .html"]


def test_a_link_to_a_folder_above_is_refused(tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "0.jpg").write_bytes(jpeg(8, 8))
    (tmp_path / "in" / "a" / "up").symlink_to(tmp_path / "in")
    with pytest.raises(UsageError, match="is a link to a folder that it lies in"):
        image_folder(tmp_path / "in")


def tar_of(path, *members) -> object:
    import io
    import tarfile

    with tarfile.open(path, "w") as archive:
        for name, data in members:
            head = tarfile.TarInfo(name)
            if data is None:
                head.type, head.linkname = tarfile.SYMTYPE, "0.txt"
                archive.addfile(head)
            else:
                head.size = len(data)
                archive.addfile(head, io.BytesIO(data))
    return path


def test_members_of_tars_are_kept_told_or_refused(tmp_path):
    source = source_of(tar_of(tmp_path / "a.tar", ("0.txt", b"a"), ("README", b"r"), ("._0.txt", b"m")), None)
    assert "2 files" in source.notes[0] and "KEY.SUFFIX" in source.notes[0]
    with pytest.raises(UsageError, match="is a link to 0.txt, without its own bytes"):
        source_of(tar_of(tmp_path / "b.tar", ("0.txt", b"a"), ("1.txt", None)), None)


def test_a_member_with_a_reserved_name_keeps_its_value(tmp_path):
    source = source_of(tar_of(tmp_path / "a.tar", ("x.__key__", b"1"), ("x.txt", b"hello")), None)
    assert made_of(source, tmp_path / "out")[0] == {"key": b"1", "txt": "hello"}


def test_columns_of_two_types_in_two_files_are_named(tmp_path):
    import pyarrow

    folder = parquet_folder(tmp_path / "in", {"a": ["x"]}, {"a": [b"\xff"]})
    with pytest.raises(BadSample, match="a: it is text, and bytes in other files"):
        made_of(source_of(folder, None), tmp_path / "out")
    decimals = pyarrow.array([None], pyarrow.decimal128(5, 2))
    folder = parquet_folder(tmp_path / "more", {"a": [1]}, {"a": decimals})
    with pytest.raises(BadSample, match="a: it is a whole number in a column of text, dates or decimal numbers"):
        made_of(source_of(folder, None), tmp_path / "out")


def test_hidden_images_beside_folders_of_classes_are_told(tmp_path):
    for name in ("c/1.png", ".2.png", "3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    assert "2 files" in "".join(source_of(tmp_path, None).notes)


def test_hdf5_behind_links_is_read(tmp_path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file["group/z"] = np.arange(3.0)
        file["soft"] = h5py.SoftLink("/x")
    assert rows_of(source_of(tmp_path / "a.h5", None), tmp_path / "out")[2] == {"x": 2, "group_z": 2.0, "soft": 2}
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["gone"] = h5py.SoftLink("/nowhere")
    with pytest.raises(UsageError, match="gone is a link to nothing"):
        len(source_of(tmp_path / "b.h5", None))


def test_a_record_of_sequences_is_refused(tmp_path):
    lists = b"\x12\x02\x0a\x00"  # of a SequenceExample: feature_lists, field 2
    (tmp_path / "a.tfrecord").write_bytes(tfrecord.framed(tfrecord.encoded({"x": [1]}) + lists))
    with pytest.raises(BadSample, match="SequenceExample is not supported"):
        made_of(source_of(tmp_path / "a.tfrecord", None), tmp_path / "out")


@pytest.mark.parametrize(
    "samples, said",
    [
        ([{"a": np.ma.masked_array([1, 2], [True, False])}], "masked array"),
        ([{"a": 0.5}, {"a": 2**60 + 1}], "would become"),
        ([{"a": np.longdouble(1) / 3}], "would become"),
    ],
)
def test_values_of_a_dataset_that_would_change_are_refused(tmp_path, monkeypatch, samples, said):
    with pytest.raises(BadSample, match=said):
        made_of(own_source(monkeypatch, Own(samples)), tmp_path / "out")


class Point(NamedTuple):
    x: float
    y: int


def test_dates_named_tuples_and_big_endian_arrays_of_a_dataset(tmp_path, monkeypatch):
    day, span = np.datetime64("2026-01-02T03:04:05.000000006"), np.timedelta64(5, "s")
    samples = [{"day": day, "span": span, "big": np.arange(3, dtype=">f4")[::-1], "__key__": "mine"}]
    (row,) = rows_of(own_source(monkeypatch, Own(samples)), tmp_path / "out")
    assert (row["day"], row["span"], row["key"]) == (day, span, "mine")
    assert row["big"].dtype.isnative and row["big"].tolist() == [2, 1, 0]
    points = own_source(monkeypatch, Own([Point(1, 2), Point(1.5, 3)]))
    assert rows_of(points, tmp_path / "points") == [{"x": 1.0, "y": 2}, {"x": 1.5, "y": 3}]


def test_a_source_that_changed_at_the_same_size_is_another_source(tmp_path):
    from paceline.data.convert.convert import fingerprint

    path = sounds(tmp_path, "path\n" + "".join(f"{number}.wav\n" for number in range(200)), 200)
    before = fingerprint(source_of(path, None), Options())
    assert fingerprint(source_of(path, None), Options()) == before
    (tmp_path / "101.wav").write_bytes(b"RIFX\x00")
    assert fingerprint(source_of(path, None), Options()) != before


@pytest.mark.parametrize("kind", ["tfrecord", "dataset", "writer"])
def test_a_column_that_comes_after_the_first_samples_is_never_dropped(tmp_path, monkeypatch, kind):
    samples = [{"a": 1}] * 100 + [{"a": 2, "late": 3}]
    with pytest.raises(BadSample, match=r"(byte \d+|\[100\]|sample 100) has .*late"):
        if kind == "writer":
            with Writer(tmp_path / "out") as writer:
                for sample in samples:
                    writer.write(sample)
        elif kind == "dataset":
            made_of(own_source(monkeypatch, Own(samples)), tmp_path / "out")
        else:
            records = [tfrecord.framed(tfrecord.encoded({key: [one] for key, one in row.items()})) for row in samples]
            (tmp_path / "a.tfrecord").write_bytes(b"".join(records))
            made_of(source_of(tmp_path / "a.tfrecord", None), tmp_path / "out")


def test_a_column_that_only_one_tar_or_table_has_comes_over(tmp_path):
    parquet_folder(tmp_path / "in", {"a": [1]}, {"a": [2], "late": [3]})
    assert rows_of(source_of(tmp_path / "in", None), tmp_path / "out")[1] == {"a": 2, "late": 3}
    tar_of(tmp_path / "a.tar", *((f"{number:03d}.txt", b"x") for number in range(100)), ("100.late", b"y"))
    assert rows_of(source_of(tmp_path / "a.tar", None), tmp_path / "tars")[100] == {"txt": None, "late": b"y"}


@pytest.mark.parametrize("lost", [0, 2])
def test_chunks_that_a_zarr_store_lacks_are_told(tmp_path, lost):
    zarr = pytest.importorskip("zarr")
    made = zarr.open(str(tmp_path / "a.zarr"), mode="w", shape=(8,), chunks=(2,), dtype="i4")
    made[:] = np.arange(1, 9)
    chunks = [path for path in (tmp_path / "a.zarr").rglob("*") if path.is_file() and path.name.isdigit()]
    for path in chunks[:lost]:
        path.unlink()
    notes = [note for note in source_of(tmp_path / "a.zarr", None).notes if "lacks 2 chunks" in note]
    assert (len(chunks), len(notes)) == (4, int(lost > 0))


@pytest.mark.parametrize("lost", ["", "file", "data set"])
def test_parts_that_a_virtual_data_set_of_hdf5_lacks_are_named(tmp_path, lost):
    import h5py

    layout = h5py.VirtualLayout((4,), "i4")
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(2, dtype="i4") + 5 * number
        layout[2 * number : 2 * number + 2] = h5py.VirtualSource(f"{number}.h5", "x", (2,))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    if lost == "file":
        (tmp_path / "1.h5").unlink()
    elif lost:
        with h5py.File(tmp_path / "1.h5", "a") as file:
            del file["x"]
    if lost:
        with pytest.raises(UsageError, match="all.h5: x takes values from x in .*1.h5, which is not there"):
            len(source_of(tmp_path / "all.h5", None))
    else:
        assert [row["x"] for row in rows_of(source_of(tmp_path / "all.h5", None), tmp_path / "out")] == [0, 1, 5, 6]


def test_an_index_that_pandas_stores_as_a_range_is_told(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [1, 2, 3], "text": ["a", "b", "c"]})
    frame.set_index("id").to_parquet(tmp_path / "a.parquet")
    frame.to_parquet(tmp_path / "b.parquet")
    assert source_of(tmp_path / "a.parquet", None).notes == [
        "the index id of pandas is not converted; use df.reset_index() to keep it"
    ]
    assert source_of(tmp_path / "b.parquet", None).notes == []


def test_a_data_set_that_is_converted_already_is_no_source(tmp_path):
    with Writer(tmp_path / "shards") as writer:
        writer.write({"x": 1})
    with pytest.raises(UsageError, match="is a data set of paceline data convert already; .* use ShardedDataset"):
        source_of(tmp_path / "shards", None)
