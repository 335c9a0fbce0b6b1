"""Every format that is read gives the same samples, and what is exported comes back as it was."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.making import converted, jpeg

from paceline.core.errors import UsageError
from paceline.data import decode_audio
from paceline.data.convert.convert import Options, convert
from paceline.data.convert.export import export, export_notes
from paceline.data.convert.writer import Writer
from paceline.data.format import tfrecord
from paceline.data.loader.loader import Loader
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources import BadSample
from paceline.data.sources import tfrecord as sources_of_records
from paceline.data.sources.found import source_of

PICTURES = [jpeg(24 + 8 * number, 32, number) for number in range(6)]
LABELS = [3, 1, 4, 1, 5, 9]


def quiet(done: int, whole: int) -> None:
    pass


def read_back(source, dest) -> list[tuple[bytes, int]]:
    """Convert a source in its order, and return what is there then."""
    convert(source, dest, Options(seed=None, verbatim=True), 1, quiet)
    dataset = ShardedDataset(dest)
    places = dataset.places(np.arange(len(dataset)))
    return list(zip([dataset.payload("image", place) for place in places], dataset.numbers("label", places).tolist()))


def write_tar(path) -> None:
    with tarfile.open(path, "w") as archive:
        for number, (picture, label) in enumerate(zip(PICTURES, LABELS)):
            files = ("cls", str(label).encode()), ("json", json.dumps({"n": number}).encode()), ("jpg", picture)
            for suffix, data in files:
                info = tarfile.TarInfo(
                    f"train/sample.{number}"[: -2 if number > 9 else None].replace(".", "_") + f".{suffix}"
                )
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def write_tfrecord(path) -> None:
    with open(path, "wb") as file:
        for picture, label in zip(PICTURES, LABELS):
            example = {
                "image/encoded": [picture],
                "image/class/label": [label],
                "box": [0.5, 0.25],
                "text": [b"caption"],
            }
            file.write(tfrecord.framed(tfrecord.encoded(example)))


def write_parquet(path) -> None:
    import pyarrow
    import pyarrow.parquet

    kept = [{"bytes": picture, "path": f"{number}.jpg"} for number, picture in enumerate(PICTURES)]
    table = pyarrow.table({"image": kept, "label": LABELS, "caption": ["a"] * 6, "weights": [[1.0, 2.0]] * 6})
    pyarrow.parquet.write_table(table, path, row_group_size=4)


def write_hdf5(path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        own = file.create_dataset("image", 6, h5py.vlen_dtype(np.uint8))
        for number, picture in enumerate(PICTURES):
            own[number] = np.frombuffer(picture, np.uint8)
        file["targets"] = LABELS
        file["features"] = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    "name, write",
    [
        ("a.tar", write_tar),
        ("a.tfrecord-00000-of-00001", write_tfrecord),
        ("a.parquet", write_parquet),
        ("a.h5", write_hdf5),
    ],
)
def test_pictures_and_labels_come_over(tmp_path, name, write):
    write(tmp_path / name)
    assert read_back(source_of(tmp_path / name, None), tmp_path / "shards") == list(zip(PICTURES, LABELS))


def test_a_folder_is_all_of_its_files(tmp_path):
    (tmp_path / "tars").mkdir()
    for number in range(3):
        write_tar(tmp_path / "tars" / f"{number}.tar")
    assert len(source_of(tmp_path / "tars", None)) == 18


def test_other_columns_keep_their_kind(tmp_path):
    kinds = {}
    for name, write in (("a.tar", write_tar), ("a.tfrecord", write_tfrecord), ("a.parquet", write_parquet)):
        write(tmp_path / name)
        kinds[name] = {column.name: column.kind for column in source_of(tmp_path / name, None).columns}
    assert kinds["a.tar"] == {"label": "int", "json": "text", "image": "image"}
    assert kinds["a.tfrecord"] == {"image": "image", "label": "int", "box": "array", "text": "text"}
    assert kinds["a.parquet"] == {"image": "image", "label": "int", "caption": "text", "weights": "array"}


def test_arrays_of_numpy(tmp_path):
    folder = tmp_path / "arrays"
    folder.mkdir()
    features = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", np.arange(10))
    convert(source_of(folder, None), tmp_path / "shards", Options(seed=None), 1, quiet)
    dataset = ShardedDataset(tmp_path / "shards")
    places = dataset.places(np.arange(10))
    rows = [np.load(io.BytesIO(dataset.payload("features", place))) for place in places]
    assert np.array_equal(np.stack(rows), features)
    assert dataset.numbers("label", places).tolist() == list(range(10))
    np.save(folder / "more.npy", np.arange(11))
    with pytest.raises(UsageError, match="arrays of different lengths"):
        len(source_of(folder, None))


@pytest.mark.parametrize("kind", ["tfrecord", "hdf5", "webdataset"])
def test_what_is_exported_comes_back(tmp_path, kind):
    dataset = converted(tmp_path)
    dest = tmp_path / ("out.h5" if kind == "hdf5" else "out")
    command = [sys.executable, "-m", "paceline", "data", "export", "--format", kind, str(dataset.folder), str(dest)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "24 samples in" in done.stdout
    places = dataset.places(np.arange(24))
    labels = dataset.numbers("label", places).tolist()
    here = list(zip([dataset.payload("image", place) for place in places], labels))
    assert read_back(source_of(dest, None), tmp_path / "again") == here
    assert not list(tmp_path.rglob(".*.part"))
    with pytest.raises(UsageError, match="already exists"):
        export(dataset, dest, kind, quiet)


def write_packed(path) -> None:
    import gzip

    write_tar(path.with_name("plain"))
    path.write_bytes(gzip.compress(path.with_name("plain").read_bytes()))


def arrow_table() -> object:
    import pyarrow

    return pyarrow.table({"image": [{"bytes": one, "path": "a.jpg"} for one in PICTURES], "label": LABELS})


def write_feather(path) -> None:
    import pyarrow.feather

    pyarrow.feather.write_feather(arrow_table(), path, chunksize=4)


def write_stream(path) -> None:
    """As Hugging Face's `save_to_disk` does: a stream of batches."""
    import pyarrow

    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, arrow_table().schema) as stream:
        stream.write_table(arrow_table(), max_chunksize=4)


@pytest.mark.parametrize(
    "name, write",
    [
        ("a.tar.gz", write_packed),
        ("a.tgz", write_packed),
        ("a.feather", write_feather),
        ("data-00000-of-00001.arrow", write_stream),
    ],
)
def test_packed_tars_and_arrow_files_come_over(tmp_path, name, write):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / name)
    (tmp_path / "in" / "plain").unlink(missing_ok=True)
    for number, processes in enumerate((1, 2)):
        source = source_of(tmp_path / "in", None)
        convert(source, tmp_path / f"{number}", Options(seed=1, verbatim=True, shard_bytes=8000), processes, quiet)
        dataset = ShardedDataset(tmp_path / f"{number}")
        places = dataset.places(np.arange(len(dataset)))
        found = zip([dataset.payload("image", place) for place in places], dataset.numbers("label", places).tolist())
        assert sorted(found) == sorted(zip(PICTURES, LABELS))


def test_a_packed_tar_that_is_cut_off_is_refused(tmp_path):
    write_packed(tmp_path / "a.tar.gz")
    (tmp_path / "a.tar.gz").write_bytes((tmp_path / "a.tar.gz").read_bytes()[:-40])
    with pytest.raises(UsageError, match="cannot be read as a tar"):
        source_of(tmp_path / "a.tar.gz", None)


def test_a_data_set_of_hugging_face_on_a_disk(tmp_path):
    import datasets

    features = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"]), "text": datasets.Value("string")})
    made = datasets.Dataset.from_dict({"label": [1, 0, 1], "text": ["ä", "", "c"]}, features=features)
    made.shuffle(seed=0).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made}).save_to_disk(tmp_path / "many")
    source = source_of(tmp_path / "one", None)
    rows = [(source.sample(n)["label"], source.sample(n)["text"].data.decode()) for n in range(3)]
    assert (sorted(rows), list(source.classes), source.notes) == ([(0, ""), (1, "c"), (1, "ä")], ["cat", "dog"], [])
    with pytest.raises(UsageError, match="name one of .*train"):
        source_of(tmp_path / "many", None)


@pytest.mark.parametrize("how", [{"threads": 0}, {"threads": 2}, {"processes": 1}])
def test_a_loader_reads_a_data_set_of_hugging_face_as_its_own_loader_does(how):
    import datasets

    values = {"x": np.random.default_rng(0).random((50, 3)), "label": range(50), "text": [f"ä{n}" for n in range(50)]}
    made = datasets.Dataset.from_dict(values).with_format("torch")
    pairs = zip(Loader(made, 8, **how), torch.utils.data.DataLoader(made, 8), strict=True)
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys() and ours["text"] == theirs["text"]
        assert all(torch.equal(ours[name], theirs[name]) for name in ("x", "label"))
        assert (ours["x"].dtype, ours["label"].dtype) == (theirs["x"].dtype, theirs["label"].dtype)


def test_splits_of_hugging_face_are_named(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UsageError, match=f"name one of {tmp_path / 'train'}"):
        source_of(tmp_path, None)


def test_arrays_of_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    x, y = np.random.default_rng(0).random((10, 3), np.float32), np.arange(10)
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for name, values in (("x", x), ("inner/y", y), ("scale", np.float64(2))):
        array = group.create_array(name, shape=np.shape(values), dtype=values.dtype, chunks=(4,) * np.ndim(values))
        array[...] = values
    source = source_of(tmp_path / "a.zarr", None)
    assert "scale" in source.notes[0]
    convert(source, tmp_path / "out", Options(seed=None), 1, quiet)
    (batch,) = Loader(tmp_path / "out", 10)
    assert np.array_equal(batch["x"].numpy(), x) and batch["inner_y"].tolist() == y.tolist()


def test_lists_of_different_lengths_in_hdf5(tmp_path):
    import h5py

    rows = [np.arange(3, dtype=np.int32), np.empty(0, np.int32), np.arange(1, dtype=np.int32)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        own = file.create_dataset("boxes", 3, h5py.vlen_dtype(np.int32))
        for number, row in enumerate(rows):
            own[number] = row
    convert(source_of(tmp_path / "a.h5", None), tmp_path / "out", Options(seed=None), 1, quiet)
    batches = Loader(tmp_path / "out", 1, transform=lambda sample: sample["boxes"], threads=0)
    assert [batch[0].tolist() for batch in batches] == [row.tolist() for row in rows]


def coco_of(folder, **changed) -> object:
    (folder / "images").mkdir()
    for number in range(2):
        (folder / "images" / f"{number}.jpg").write_bytes(PICTURES[number])
    told = {
        "info": {"year": 2026},
        "images": [{"id": 7, "file_name": "0.jpg", "width": 32}, {"id": 3, "file_name": "1.jpg"}],
        "annotations": [
            {"id": 1, "image_id": 3, "category_id": 90, "bbox": [0.5, 1, 2, 3], "iscrowd": 0},
            {"id": 2, "image_id": 3, "category_id": 2, "bbox": [4, 5, 6, 7], "segmentation": [[1, 2, 3, 4, 5, 6]]},
        ],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 2, "name": "bicycle"}],
    }
    (folder / "instances.json").write_text(json.dumps(told | changed))
    return folder / "instances.json"


def test_objects_of_coco_come_over_as_they_are(tmp_path):
    path = coco_of(tmp_path)
    source, told = source_of(path, None), json.loads(path.read_text())
    assert source.notes == [f"parts of {path} that are not converted: info"]
    convert(source, tmp_path / "out", Options(seed=None, verbatim=True), 1, quiet)
    dataset = ShardedDataset(tmp_path / "out")
    (batch,) = Loader(dataset, 2, columns=["objects", "fields"])
    both = [one | {"label": 1 - number} for number, one in enumerate(told["annotations"])]
    assert (batch["objects"], batch["fields"]) == ([[], both], told["images"])
    assert list(dataset.contents.classes) == ["bicycle", "toothbrush"]
    assert [dataset.payload("image", place) for place in dataset.places(np.arange(2))] == PICTURES[:2]


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"annotations": [{"id": 1, "image_id": 8, "category_id": 2}]}, "image_id 8, which is not there"),
        ({"images": [{"id": 1, "file_name": "x.jpg"}]}, "is in none of the folders"),
        ({"images": [{"id": 1, "file_name": "0.jpg"}, {"id": 1, "file_name": "1.jpg"}]}, "an id is there twice"),
        ({"categories": None}, "has no list categories"),
        ({"categories": [{"id": "x7", "name": "cat"}]}, "category cat has id 'x7'; give whole numbers"),
    ],
)
def test_coco_files_that_do_not_fit_together(tmp_path, changed, said):
    with pytest.raises(UsageError, match=said):
        source_of(coco_of(tmp_path, **({"annotations": []} | changed)), None)


def test_sound_is_kept_as_bytes_and_decoded(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "in").mkdir()
    played = np.random.default_rng(0).integers(-(2**15), 2**15, (100, 2), np.int16)
    for number in range(2):
        soundfile.write(tmp_path / "in" / f"{number}.flac", played[number * 50 :], 8000, subtype="PCM_16")
    convert(source_of(tmp_path / "in", None), tmp_path / "out", Options(seed=None), 1, quiet)
    loader = Loader(tmp_path / "out", 1, transform=lambda sample: decode_audio(sample["audio"]).samples, threads=0)
    second = list(loader)[1][0].numpy()
    assert np.array_equal(np.round(second * 2**15).astype(np.int64), played[50:].T)
    with pytest.raises(BadSample, match="cannot be decoded"):
        decode_audio(b"no sound")


VALUES = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # on a busy machine
@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_examples_come_back(features):
    back = tfrecord.decoded(tfrecord.encoded(features))
    assert {name: list(values) for name, values in back.items()} == features


def test_an_example_as_tensorflow_writes_it():
    """Features {"a": 1, -1 as Int64List; "f": 0.5 as FloatList; "b": b"xy" as BytesList}, byte by byte."""
    integers = b"\x0a\x11\x0a\x01a\x12\x0c\x1a\x0a\x0a\x08" + b"\x01" + b"\xff\xff\xff\xff\xff\xff\xff"
    floats = b"\x0a\x0d\x0a\x01f\x12\x08\x12\x06\x0a\x04\x00\x00\x00\x3f"
    strings = b"\x0a\x0b\x0a\x01b\x12\x06\x0a\x04\x0a\x02xy"
    back = tfrecord.decoded(b"\x0a" + bytes([len(floats + strings)]) + floats + strings)
    assert {name: list(values) for name, values in back.items()} == {"f": [0.5], "b": [b"xy"]}
    with pytest.raises(tfrecord.NotATFRecord):
        tfrecord.decoded(b"\x0a" + bytes([len(integers)]) + integers)


def test_checksums_are_those_of_the_format():
    """CRC-32C of nine zeros to nine is 0xE3069283 (RFC 3720 and the catalogue of CRCs); slow and quick ones agree."""
    assert tfrecord.crc32c(b"123456789") == 0xE3069283
    data = bytes(range(256)) * 3
    assert (
        tfrecord.masked_crc32c(data)
        == ((tfrecord.crc32c(data) >> 15 | tfrecord.crc32c(data) << 17) + 0xA282EAD8) & 0xFFFFFFFF
    )


@pytest.mark.parametrize("size", [1, 4000])
@pytest.mark.parametrize("fast", [True, False])
def test_records_are_compared_with_their_checksums_if_that_is_fast(tmp_path, monkeypatch, size, fast):
    records = [tfrecord.framed(tfrecord.encoded({"a": [bytes([65 + number]) * size]})) for number in range(2)]
    place = len(records[0]) + len(records[1]) - 5
    data = b"".join(records)
    (tmp_path / "x.tfrecord").write_bytes(data[:place] + b"Z" + data[place + 1 :])
    if fast:
        pytest.importorskip("google_crc32c")
    else:
        monkeypatch.setattr(tfrecord, "fast_crc32c", lambda: None)
        monkeypatch.setattr(sources_of_records, "fast_crc32c", lambda: None)
    source = source_of(tmp_path / "x.tfrecord", None)
    assert source.sample(0)["a"].data == b"A" * size
    if fast or size == 1:
        with pytest.raises(BadSample, match="byte .*: it is damaged: its checksum does not match"):
            source.sample(1)
    assert any("checksums" in note for note in source.notes) == (not fast)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_example_or_none(data):
    with suppress(tfrecord.NotATFRecord):
        tfrecord.decoded(data)


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.tar", b"no tar", "cannot be read as a tar"),
        ("a.tfrecord", b"no record at all", "is damaged, or this is not a TFRecord file"),
        ("a.tfrecord", b"short", "ends inside the header of a record"),
        ("a.parquet", b"no table", "cannot be read as Parquet"),
        ("a.h5", b"no file", "cannot be read as HDF5"),
        ("a.npy", b"no array", "cannot be read as NumPy arrays"),
        ("a.what", b"", "is not recognised"),
    ],
)
def test_files_that_are_something_else(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        len(source_of(tmp_path / name, None))


def test_samples_that_lack_a_part(tmp_path):
    write_tar(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        info = tarfile.TarInfo("train/last.jpg")
        info.size = len(PICTURES[0])
        archive.addfile(info, io.BytesIO(PICTURES[0]))
    source = source_of(tmp_path / "a.tar", None)
    last = source.sample(6)
    assert (last["label"], last["json"], last["image"].data) == (None, None, PICTURES[0])


def test_single_values_of_hdf5_are_left_out_and_told(tmp_path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["version"], file["name"] = np.arange(12).reshape(4, 3), 3, "abc"
    source = source_of(tmp_path / "a.h5", None)
    assert [column.name for column in source.columns] == ["x"]
    assert source.notes == [f"single values of {tmp_path / 'a.h5'} are not converted: name, version"]


def test_arrays_of_an_archive(tmp_path):
    x = np.random.default_rng(0).random((5, 3))
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.arange(5), version=3)
    source = source_of(tmp_path / "a.npz", None)
    assert [column.name for column in source.columns] == ["x", "label"] and len(source.notes) == 1
    convert(source, tmp_path / "shards", Options(seed=None), 1, lambda done, whole: None)
    (batch,) = Loader(tmp_path / "shards", 5)
    assert np.array_equal(batch["x"].numpy(), x) and batch["label"].tolist() == list(range(5))
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    with pytest.raises(UsageError, match="cannot be read as NumPy arrays"):
        len(source_of(tmp_path / "b.npz", None))


def written(folder, *samples, classes=()) -> ShardedDataset:
    with Writer(folder, classes=classes) as writer:
        for sample in samples:
            writer.write(sample)
    return ShardedDataset(folder)


def test_what_an_export_does_not_keep_is_told(tmp_path):
    dataset = written(tmp_path / "in", {"x": 0.1, "label": 0}, {"label": 1}, classes=["cat", "dog"])
    assert any("column x are rounded" in text for text in export_notes(dataset, "tfrecord"))
    assert any("column x become NaN" in text for text in export_notes(dataset, "hdf5"))
    assert export_notes(dataset, "webdataset") == ["the names of samples are not exported, such as 'sample 0'"]
    export(dataset, tmp_path / "out", "webdataset", quiet)
    assert (tmp_path / "out" / "classes.txt").read_text() == "cat\ndog\n"


def test_text_of_hdf5_comes_back_as_text_and_gaps_are_refused(tmp_path):
    export(written(tmp_path / "in", {"t": "ä", "n": 1}, {"t": "", "n": 2}), tmp_path / "a.h5", "hdf5", quiet)
    source = source_of(tmp_path / "a.h5", None)
    assert {column.name: column.kind for column in source.columns} == {"t": "text", "n": "int"}
    assert [source.sample(number)["t"].data.decode() for number in range(2)] == ["ä", ""]
    with pytest.raises(UsageError, match="samples have no t, and HDF5 cannot store missing values"):
        export(written(tmp_path / "gaps", {"t": "a", "n": 1}, {"n": 2}), tmp_path / "b.h5", "hdf5", quiet)
    with pytest.raises(UsageError, match="zero byte"):
        export(written(tmp_path / "zero", {"t": "a\0b"}), tmp_path / "c.h5", "hdf5", quiet)


def test_a_conversion_that_was_interrupted_after_its_last_shard_is_finished(tmp_path, monkeypatch):
    """Of a source that is read in groups of rows, too."""
    from paceline.data.convert import convert as module

    write_parquet(tmp_path / "a.parquet")

    def finish(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "write_data_set", finish)
        convert(source_of(tmp_path / "a.parquet", None), tmp_path / "out", Options(seed=0), 2, quiet)
    made = convert(source_of(tmp_path / "a.parquet", None), tmp_path / "out", Options(seed=0), 2, quiet)
    assert (made.contents.samples, made.resumed) == (6, len(made.contents.shards))


@pytest.mark.parametrize("kind", ["text", "bytes"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_pages_of_parquet_are_compared_with_their_checksums(tmp_path, kind, on_error):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [f"value number {number}" for number in range(40)]
    table = pyarrow.table({"x": values if kind == "text" else [value.encode() for value in values]})
    path = tmp_path / "a.parquet"
    parquet.write_table(
        table, path, row_group_size=20, write_page_checksum=True, compression="none", use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    data[data.find(b"value number 25")] ^= 1
    path.write_bytes(data)
    options = Options(seed=None, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(BadSample, match="a.parquet, row 2.* cannot be read"):
            convert(source_of(path, None), tmp_path / "out", options, 1, quiet)
    else:
        assert len(convert(source_of(path, None), tmp_path / "out", options, 1, quiet).skipped) == 20
        assert [ShardedDataset(tmp_path / "out")[number]["x"] for number in (0, 19)] == [
            table["x"][number].as_py() for number in (0, 19)
        ]


@pytest.mark.parametrize("chunk", [0, 1, 3])
@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_rows_of_a_damaged_chunk_are_damaged_samples(tmp_path, kind, chunk):
    values = np.random.default_rng(0).random((40, 4))
    path = tmp_path / f"a.{kind}"
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        zarr.open(str(path), mode="w", shape=(40, 4), chunks=(10, 4), dtype="f8")[...] = values
        (cut,) = [one for one in path.rglob("*") if one.is_file() and f"{chunk}/0" in str(one).replace(".0", "/0")]
        cut.write_bytes(cut.read_bytes()[:50])
    else:
        import h5py

        with h5py.File(path, "w") as file:
            made = file.create_dataset("x", data=values, chunks=(10, 4), compression="gzip")
            file.flush()
            begin = made.id.get_chunk_info(chunk).byte_offset
        data = bytearray(path.read_bytes())
        data[begin : begin + 50] = bytes(50)
        path.write_bytes(data)
    with pytest.raises(BadSample, match=rf"a.{kind}\[{chunk}\d?\] cannot be read"):
        convert(source_of(path, None), tmp_path / "one", Options(seed=None), 1, quiet)
    skipping = Options(seed=None, on_error="skip")
    assert len(convert(source_of(path, None), tmp_path / "two", skipping, 1, quiet).skipped) == 10
    (batch,) = Loader(tmp_path / "two", 30)
    (array,) = batch.values()
    assert np.array_equal(array.numpy(), np.delete(values, np.s_[10 * chunk : 10 * chunk + 10], 0))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[[1.0, 2.0, 3.0], [4.0, 5.0]], [[1.0, 2.0]]], "json"),
        ([[[1.0, 2.0]], None, [[1.0], [2.0, 3.0]]], "json"),
        ([[[1.0, 2.0], None]], "json"),
        ([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]], []], "array"),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_lists_of_lists_are_arrays_or_json(tmp_path, form, values, kind):
    import pyarrow
    import pyarrow.feather
    import pyarrow.parquet

    table = pyarrow.table({"x": pyarrow.array(values, pyarrow.list_(pyarrow.list_(pyarrow.float32())))})
    write = pyarrow.parquet.write_table if form == "parquet" else pyarrow.feather.write_feather
    write(table, str(tmp_path / f"a.{form}"))
    convert(source_of(tmp_path / f"a.{form}", None), tmp_path / "out", Options(seed=None), 1, quiet)
    found = ShardedDataset(tmp_path / "out")
    assert found.contents.columns[0].kind == kind
    read = [found[number]["x"] for number in range(len(values))]
    assert [one.tolist() if isinstance(one, np.ndarray) else one for one in read] == values


@pytest.mark.parametrize("bad", [0, 2])
def test_a_list_of_byte_strings_in_tfrecord_is_a_damaged_sample_with_a_name(tmp_path, bad):
    with open(tmp_path / "a.tfrecord", "wb") as file:
        for number in range(4):
            file.write(tfrecord.framed(tfrecord.encoded({"x": [b"a", b"b"] if number == bad else [b"a"]})))
    made = convert(source_of(tmp_path, None), tmp_path / "out", Options(on_error="skip"), 1, quiet)
    assert len(ShardedDataset(tmp_path / "out")) == 3
    assert [text.partition(": x: a feature is a list of 2")[0] for text in made.skipped] == [
        source_of(tmp_path, None).name(bad)
    ]
