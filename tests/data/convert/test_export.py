"""Every kind of column, exported and converted again: it is what it was, or the export names the column."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paceline.cli import main
from paceline.core.errors import UsageError
from paceline.data import Loader, ShardedDataset, Writer
from paceline.data.convert.convert import Options, convert
from paceline.data.convert.export import FORMATS, export, export_notes
from paceline.data.format import tfrecord
from paceline.data.sources.found import source_of

N = 4
LATE = 80  # more samples than a reader looks at to find out what there is


def each(make: Callable[[int], Any]) -> list[Any]:
    return [make(number) for number in range(N)]


COLUMNS: dict[str, list[Any]] = {
    "int": [-(2**63), 2**63 - 1, 0, 2**53 + 1],
    "bool": [True, False, True, False],
    "float": [0.5, float("nan"), float("-inf"), -0.0],
    "text": ["", "ä€𝄞", "x\ny", "{}"],
    "bytes": [b"", b"text", b"\0\xff", b"\x93NUMPY"],
    "bytes of text": [b"a", b"b", b"", b"c"],
    "json": [{"ä": [None, 1.5]}, [1, 2], [], {}],
    "array": each(lambda number: np.arange(3, dtype=np.float32) + number),
    "array of two axes": each(lambda number: np.full((2, 3), number, np.int16)),
    "array of one number": each(lambda number: np.array([number])),
    "array without axis": each(lambda number: np.array(number, np.int32)),
    "array of bytes": each(lambda number: np.arange(5, dtype=np.uint8)),
    "array of nothing": each(lambda number: np.zeros((0, 2))),
    "array of bools": each(lambda number: np.array([True, number > 1])),
    "array of complex": each(lambda number: np.array([1j * number])),
    "array of structs": each(lambda number: np.zeros(2, [("a", "i4"), ("b", "f8")])),
    "lists of floats": each(lambda number: np.arange(number, dtype=np.float32)),
    "lists of doubles": each(lambda number: np.arange(number) / 3),
    "lists of bytes": each(lambda number: np.arange(number, dtype=np.uint8)),
    "lists of big ints": each(lambda number: np.full(number, 2**64 - 1, np.uint64)),
}
GAPS = {kind: [None, *values[1:]] for kind, values in COLUMNS.items()}
LATE_GAPS = {kind: [None] * LATE + values for kind, values in COLUMNS.items()}
WITH_GAPS = ("tfrecord", "webdataset")  # formats that keep missing values
REFUSED_BY_HDF5 = {
    "arrays of different types": [np.zeros(2), np.zeros(2, np.int64)],
    "arrays of different shapes": [np.zeros((1, 2)), np.zeros((2, 2))],
    "arrays of dates": [np.array(["2020-01-01"], "M8[D]")],
    "arrays of text": [np.array(["ab"])],
    "text with a zero byte": ["a\0b"],
    "int": [1, None],
    "text": ["a", None],
}


def written(folder, values: list[Any]) -> ShardedDataset:
    """Shards of a column x, and of a column id for the order."""
    with Writer(folder) as writer:
        for number, value in enumerate(values):
            writer.write({"id": number, "x": value})
    return ShardedDataset(folder)


def there_and_back(dataset: ShardedDataset, folder, kind: str) -> ShardedDataset:
    dest = folder / ("out.h5" if kind == "hdf5" else "out")
    export(dataset, dest, kind, lambda done, whole: None)
    convert(source_of(dest, None), folder / "back", Options(seed=None, verbatim=True), 1, lambda done, whole: None)
    return ShardedDataset(folder / "back")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (
            type(other) is type(one) and one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
        )
    return type(one) is type(other) and (one == other or repr(one) == repr(other))


def check_same(back: ShardedDataset, dataset: ShardedDataset) -> None:
    assert {column.name: column.kind for column in back.contents.columns} == {
        column.name: column.kind for column in dataset.contents.columns
    }
    pairs = [(dataset[number], back[number]) for number in range(len(dataset))]
    assert [here for here, there in pairs if here["id"] != there["id"] or not same(here["x"], there["x"])] == []


CASES = [
    *((kind, name, values) for kind in (*WITH_GAPS, "hdf5") for name, values in COLUMNS.items()),
    *((kind, f"{name}, one missing", values) for kind in WITH_GAPS for name, values in GAPS.items()),
    *(
        (kind, f"{name}, the first missing", values)
        for kind in WITH_GAPS
        for name, values in LATE_GAPS.items()
        if name != "bool"
    ),
]


@pytest.mark.parametrize("kind, values", [pytest.param(kind, values, id=f"{kind}-{n}") for kind, n, values in CASES])
def test_a_column_comes_back_as_it_was(tmp_path, kind, values):
    if values[0] is None and len(values) > LATE:  # Writer looks at the first samples: the kind is told by a full one
        values = [values[-1], *values]
    dataset = written(tmp_path / "shards", values)
    check_same(there_and_back(dataset, tmp_path, kind), dataset)


@pytest.mark.parametrize("kind", ["tfrecord", "hdf5", "webdataset"])
@pytest.mark.parametrize("mode, format", [("RGB", "PNG"), ("P", "PNG"), ("L", "TIFF"), ("RGB", "GIF")])
def test_images_come_back_as_they_were(tmp_path, kind, mode, format):
    for number in range(2):
        Image.new(mode, (8 + number, 9), number).save(tmp_path / f"{number}", format)
    dataset = written(tmp_path / "shards", [Image.open(tmp_path / f"{number}") for number in range(2)])
    back = there_and_back(dataset, tmp_path, kind)
    assert back.contents.column("x").kind == "image"
    for place in dataset.places(np.arange(2)):
        assert back.payload("x", place) == dataset.payload("x", place)


@pytest.mark.parametrize("told", [True, False])
def test_labels_of_webdataset_come_back(tmp_path, told):
    with Writer(tmp_path / "shards", classes=["a", "b"]) as writer:
        writer.write({"label": 1, "share": 0.5})
    with Writer(tmp_path / "decimal") as writer:
        writer.write({"label": 0.5, "x": 1})
    for name, classes in (("shards", ["a", "b"]), ("decimal", [])):
        dataset = ShardedDataset(tmp_path / name)
        export(dataset, tmp_path / f"{name}-tars", "webdataset", lambda done, whole: None)
        if not told:
            (tmp_path / f"{name}-tars" / "columns.json").unlink()
        source = source_of(tmp_path / f"{name}-tars", None)
        convert(source, tmp_path / f"{name}-back", Options(), 1, lambda done, whole: None)
        back = ShardedDataset(tmp_path / f"{name}-back")
        assert back.contents.classes == (classes if told else [])
        assert {key: str(value) for key, value in back[0].items()} == {k: str(v) for k, v in dataset[0].items()}


@pytest.mark.parametrize("values", REFUSED_BY_HDF5.values(), ids=REFUSED_BY_HDF5)
def test_hdf5_refuses_what_it_cannot_store_and_names_the_column(tmp_path, values):
    with pytest.raises(UsageError, match=r"\bx\b.*use (webdataset or )?tfrecord"):
        export(written(tmp_path / "shards", values), tmp_path / "out.h5", "hdf5", lambda done, whole: None)
    assert not (tmp_path / "out.h5").exists()


def test_arrays_in_hdf5_are_arrays_for_other_programs(tmp_path):
    import h5py

    rows = COLUMNS["array of two axes"]
    export(written(tmp_path / "shards", rows), tmp_path / "out.h5", "hdf5", lambda done, whole: None)
    export(written(tmp_path / "lists", COLUMNS["lists of floats"]), tmp_path / "l.h5", "hdf5", lambda done, whole: None)
    with h5py.File(tmp_path / "out.h5") as file, h5py.File(tmp_path / "l.h5") as lists:
        assert (file["x"].shape, file["x"].dtype) == ((N, 2, 3), np.int16)
        assert np.array_equal(file["x"][...], np.stack(rows))
        assert [row.tolist() for row in lists["x"][...]] == [[], [0.0], [0.0, 1.0], [0.0, 1.0, 2.0]]


def test_tfrecord_rounds_with_a_message_and_refuses_what_becomes_infinite(tmp_path):
    rounded = written(tmp_path / "rounded", [0.1, 0.5])
    assert "values of column x are rounded" in "".join(export_notes(rounded, "tfrecord"))
    assert there_and_back(rounded, tmp_path, "tfrecord")[0]["x"] == float(np.float32(0.1))
    with pytest.raises(UsageError, match="column x has 1e\\+300"):
        export(written(tmp_path / "large", [1.0, 1e300]), tmp_path / "more", "tfrecord", lambda done, whole: None)
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    "values, kind",
    [([b"a", b"\xff"], "bytes"), ([b"\xff", b"a"], "bytes"), ([b"", b"a"], "text"), ([b"", b""], "text")],
)
def test_records_of_other_programs_have_the_kind_that_holds_all_values(tmp_path, values, kind):
    with open(tmp_path / "a.tfrecord", "wb") as file:
        for value in values:
            file.write(tfrecord.framed(tfrecord.encoded({"x": [value]})))
    source = source_of(tmp_path / "a.tfrecord", None)
    assert [column.kind for column in source.columns] == [kind]
    assert [source.sample(number)["x"].data for number in range(2)] == values


@pytest.mark.parametrize("kind", FORMATS)
def test_class_names_come_back(tmp_path, kind):
    with Writer(tmp_path / "shards", classes=["cat", "dög"]) as writer:
        for number in range(4):
            writer.write({"x": number * 1.5, "label": number % 2})
    back = there_and_back(ShardedDataset(tmp_path / "shards"), tmp_path, kind)
    assert list(back.contents.classes) == ["cat", "dög"]


@pytest.mark.parametrize("kind, dtype", [(3, "int64"), (2, "float32")])
def test_a_list_of_numbers_that_is_empty_in_all_records_keeps_its_type(tmp_path, kind, dtype):
    """A record's feature x is an Int64List (3) or a FloatList (2) without a value, byte by byte."""
    record = b"\x0a\x09\x0a\x07\x0a\x01x\x12\x02" + bytes([kind << 3 | 2, 0])
    (tmp_path / "a.tfrecord").write_bytes(2 * tfrecord.framed(record))
    convert(source_of(tmp_path / "a.tfrecord", None), tmp_path / "out", Options(), 1, lambda done, whole: None)
    assert [(one["x"].dtype, one["x"].shape) for one in ShardedDataset(tmp_path / "out")] == [(dtype, (0,))] * 2


# -- verbs ---------------------------------------------------------------------------------------------

ODD = {**COLUMNS, **{f"{name}, one missing": values for name, values in GAPS.items()}, **REFUSED_BY_HDF5}


@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_verbs_work_on_every_column(tmp_path, capsys, values):
    written(tmp_path / "shards", values)
    for verb in (["inspect"], ["verify"], ["bench", "--rounds", "1", "--samples", "4", "--threads", "1"]):
        assert "x (" in typed(capsys, *verb, tmp_path / "shards") or verb[0] != "inspect"


def typed(capsys, *arguments: object) -> str:
    """What a verb prints that ends well."""
    with pytest.raises(SystemExit) as ending:
        main(["data", *map(str, arguments)])
    said = capsys.readouterr()
    assert not ending.value.code, said.err
    return said.out


UNEQUAL = ["lists of floats", "arrays of different shapes", "arrays of dates", "arrays of text", "array of structs"]


@pytest.mark.parametrize("name", UNEQUAL)
def test_samples_that_do_not_fit_into_a_tensor_are_named_and_come_as_a_list(tmp_path, name):
    dataset = written(tmp_path / "shards", ODD[name])
    with pytest.raises(UsageError, match="column x do not fit into one tensor.*give collate_fn="):
        list(Loader(dataset, len(dataset)))
    (batch,) = Loader(dataset, len(dataset), collate_fn=list)
    assert all(same(one["x"], dataset[number]["x"]) for number, one in enumerate(batch))


@pytest.mark.parametrize("mode, gap", [("P", False), ("RGB", True), ("I;16", False)])
def test_bench_loads_images_whole_of_which_no_crop_can_be_taken(tmp_path, capsys, mode, gap):
    Image.new(mode, (8, 9)).save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png")
    written(tmp_path / "shards", [image, None if gap else image, image])
    assert "samples/s" in typed(capsys, "bench", "--rounds", 1, tmp_path / "shards")


@pytest.mark.parametrize("kind", ["tfrecord", "webdataset"])
@pytest.mark.parametrize("columns", [["a"], ["a", "b"]])
def test_a_sample_without_values_is_exported_or_named(tmp_path, kind, columns):
    with Writer(tmp_path / "shards", shard_mb=0.004) as writer:
        for number in range(20):
            writer.write(dict.fromkeys(columns, None if number == 13 else number + 0.5))
    dataset = ShardedDataset(tmp_path / "shards")
    if kind == "tfrecord":
        back = there_and_back(dataset, tmp_path, kind)
        assert [back[number] for number in range(20)] == [dataset[number] for number in range(20)]
    else:
        with pytest.raises(UsageError, match="sample 13.* has no value in any column"):
            export(dataset, tmp_path / "out", kind, lambda done, whole: None)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord", "webdataset"])
def test_an_export_to_a_full_disk_says_so(tmp_path, kind):
    with Writer(tmp_path / "shards") as writer:
        for number in range(300):
            writer.write({"x": np.random.default_rng(number).bytes(2000)})
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "from paceline.cli import main; main(sys.argv[1:])"
    )
    command = ["data", "export", "--format", kind, str(tmp_path / "shards"), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "cannot write" in done.stderr and "File too large" in done.stderr
    assert not (tmp_path / "out").is_file()
