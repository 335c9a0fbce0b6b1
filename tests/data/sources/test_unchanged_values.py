"""Values of unusual types are converted unchanged or refused; none becomes its `repr`."""

from __future__ import annotations

import enum
import io

import numpy as np
import pytest
from tests.data.sources.mds_writing import write_mds
from tests.data.sources.test_odd_sources import kinds, made_of

from paceline.data import FileDataset, ShardedDataset, Writer
from paceline.data.reading.sharded import SamplePlace
from paceline.data.sources import BadSample
from paceline.data.sources.found import source_of

WORDS = [[f"w{row}_{place}" for place in range(1200)] for row in range(2)]


def hdf5(folder, data, dtype):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("words", data=data, dtype=dtype(h5py))
    return folder / "x.h5"


def zarr(folder, data, dtype):
    zarr_package = pytest.importorskip("zarr", minversion="3.1")
    zarr_package.create_array(folder / "x.zarr", name="words", data=data.astype(np.dtypes.StringDType()))
    return folder / "x.zarr"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("write", [hdf5, zarr])
@pytest.mark.parametrize("axes", [2, 3])
def test_several_texts_of_a_sample_come_back_as_a_list(tmp_path, write, axes):
    truth = WORDS if axes == 2 else [[row[:600], row[600:]] for row in WORDS]
    path = write(tmp_path, np.array(truth, object), lambda h5py: h5py.string_dtype())
    found = made_of(source_of(path, None), tmp_path / "out")
    assert kinds(found) == {"words": "json"}
    assert [found[number]["words"] for number in range(2)] == truth
    assert [FileDataset(path)[number]["words"] for number in range(2)] == truth


def test_rows_of_several_texts_of_hdf5_are_lists(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        own = file.create_dataset("words", (2,), h5py.vlen_dtype(h5py.string_dtype()))
        own[0], own[1] = np.array(["a", "b"], object), np.array(["c"], object)
    found = FileDataset(tmp_path / "x.h5")
    assert [found[number]["words"] for number in range(2)] == [["a", "b"], ["c"]]


@pytest.mark.parametrize("kind", ["reference", "text in a compound", "lists of numbers in two axes"])
def test_objects_of_hdf5_that_are_not_text_are_refused(tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if kind == "reference":
            file.create_dataset("a", (2,), h5py.ref_dtype)[:] = file.create_dataset("z", data=np.arange(2)).ref
        elif kind == "text in a compound":
            file.create_dataset("a", data=np.array([(1, "u")] * 2, [("x", "i4"), ("y", h5py.string_dtype())]))
        else:
            file.create_dataset("a", (2, 2), h5py.vlen_dtype(np.dtype("i4")))[0, 0] = [1, 2]
    with pytest.raises(BadSample, match="Python objects"):
        FileDataset(tmp_path / "x.h5")[0]


class Colour(str, enum.Enum):  # noqa: UP042 - the older way, whose str() is another text
    RED = "red"


class Level(int, enum.Enum):
    LOW = 7


class Share(float, enum.Enum):
    HALF = 0.5


class Tag(bytes, enum.Enum):
    A = b"a\0"


class Odd(str):
    def __str__(self):
        return "another text"

    def encode(self, *how):
        return b"another text"


class OddBytes(bytes):
    def __bytes__(self):
        return b"other bytes"


@pytest.mark.parametrize(
    "value, kept",
    [
        (Colour.RED, "red"),
        (Level.LOW, 7),
        (Share.HALF, 0.5),
        (Tag.A, b"a\0"),
        (Odd("text"), "text"),
        (OddBytes(b"bytes"), b"bytes"),
        (np.str_("text"), "text"),
        (np.bytes_(b"bytes"), b"bytes"),
        ([Colour.RED, Level.LOW], ["red", 7]),
        ({Colour.RED: Share.HALF}, {"red": 0.5}),
    ],
)
def test_an_enum_and_other_subclasses_are_stored_as_their_value(tmp_path, value, kept):
    with Writer(tmp_path / "out") as writer:
        writer.write({"c": value})
    found = ShardedDataset(tmp_path / "out")[0]["c"]
    assert found == kept and type(found) is type(kept)


def test_an_enum_as_the_name_of_a_column_is_its_value(tmp_path):
    with Writer(tmp_path / "out") as writer:
        writer.write({Colour.RED: 1})
    assert ShardedDataset(tmp_path / "out")[0] == {"red": 1}


def arrow(path, array):
    pa = pytest.importorskip("pyarrow")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema([("a", array.type)])) as writer:
        writer.write_batch(pa.record_batch([array], names=["a"]))
    return FileDataset(path)


def test_bytes_of_an_arrow_view_stay_bytes(tmp_path):
    pa = pytest.importorskip("pyarrow", minversion="16")
    assert arrow(tmp_path / "x.arrow", pa.array([b"a\0", b"b"], pa.binary_view()))[0]["a"] == b"a\0"


def test_arrow_values_without_a_text_form_are_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(BadSample, match="MonthDayNano"):
        arrow(tmp_path / "x.arrow", pa.array([(1, 2, 3)], pa.month_day_nano_interval()))[0]


IDS = (np.arange(42) % 21).astype(np.uint8).reshape(6, 7)


def of_palette(colours, layout="RGB", ids=IDS):
    image = pytest.importorskip("PIL.Image")
    made = image.fromarray(ids, "L")
    made.putpalette(colours, layout)
    return made


@pytest.mark.parametrize(
    "colours, layout",
    [
        ([], "RGB"),
        ([9, 9, 9, 8, 8, 8], "RGB"),
        ([1, 2, 3, 4] * 16, "RGBA"),
        ([0, 1, 2] * 21, "RGB"),
        ([7] * 768, "RGB"),
    ],
)
def test_ids_of_a_palette_are_kept_without_a_colour_for_each(tmp_path, colours, layout):
    with Writer(tmp_path / "out", images="png") as writer:
        writer.write({"mask": of_palette(colours, layout)})
    assert np.array_equal(ShardedDataset(tmp_path / "out")[0]["mask"], IDS)


def test_colours_of_a_short_palette_are_kept(tmp_path):
    image = pytest.importorskip("PIL.Image")
    picture = of_palette([9, 8, 7, 6, 5, 4])
    with Writer(tmp_path / "out", images="png") as writer:
        writer.write({"image": picture})
    with image.open(io.BytesIO(ShardedDataset(tmp_path / "out").payload("image", SamplePlace(0, 0)))) as found:
        assert found.getpalette()[:6] == [9, 8, 7, 6, 5, 4]


def test_ids_of_an_image_in_an_mds_shard_are_kept(tmp_path):
    folder = write_mds(tmp_path / "x", {"mask": "pil"}, [{"mask": of_palette([])}], 1, None)
    assert np.array_equal(FileDataset(folder)[0]["mask"], IDS)


FAR = {  # numbers in Arrow, and the text of the value
    "timestamp[us]": [(0, "1970-01-01 00:00:00"), (2**62, "148108-07-06 14:00:27.387904"), (-(2**62), None)],
    "timestamp[ms]": [(1500, "1970-01-01 00:00:01.500000"), (253402300800000, "10000-01-01 00:00:00")],
    "timestamp[s]": [(253402300799, "9999-12-31 23:59:59"), (-62135596801, "0000-12-31 23:59:59")],
    "timestamp[s, tz=Asia/Tokyo]": [(0, "1970-01-01 09:00:00+09:00"), (253402300799, "9999-12-31 23:59:59+00:00")],
    "date32": [(1, "1970-01-02"), (2932897, "10000-01-01"), (2**30, "2941775-04-07")],
    "date64": [(86400000, "1970-01-02"), (2932897 * 86400000, "10000-01-01")],
    "duration[s]": [(90061, "1 day, 1:01:01"), (86400 * 10**9 + 1, "1000000000 days, 0:00:01")],
    "duration[ms]": [(-1, "-1 day, 23:59:59.999000"), (86400 * 10**12 + 1, "1000000000 days, 0:00:00.001000")],
}


def far_array(pa, name):
    numbers = pa.array([number for number, _ in FAR[name]], pa.int32() if name == "date32" else pa.int64())
    zone = {"tz": "Asia/Tokyo"} if "tz" in name else {}
    kind, _, unit = name.partition("[")
    made = getattr(pa, kind)
    return numbers.cast(made(unit.partition("]")[0].partition(",")[0], **zone) if unit else made())


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("nested", [False, True])
def test_times_that_python_does_not_have_become_text(tmp_path, name, nested):
    pa = pytest.importorskip("pyarrow")
    array = far_array(pa, name)
    if nested:
        lists = pa.ListArray.from_arrays(list(range(len(array) + 1)), array)
        array = pa.StructArray.from_arrays([lists, lists], ["x", "y"])
    found = arrow(tmp_path / "x.arrow", array)
    for number, (_, text) in enumerate(FAR[name]):
        own = found[number]["a"]
        assert text is None or own == ({"x": [text], "y": [text]} if nested else text)


def test_nanoseconds_in_lists_and_structs_are_kept_as_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    numbers = pa.array([{"t": 1, "d": 2, "o": 3, "l": [4, None], "n": None}] * 2)
    own = {"t": pa.timestamp("ns"), "d": pa.duration("ns"), "o": pa.time64("ns"), "l": pa.list_(pa.timestamp("ns"))}
    found = arrow(tmp_path / "x.arrow", numbers.cast(pa.struct([*own.items(), ("n", pa.timestamp("ns"))])))
    time = "1970-01-01 00:00:00.00000000"
    assert found[1]["a"] == {"t": f"{time}1", "d": "2", "o": "00:00:00.000000003", "l": [f"{time}4", None], "n": None}


def test_nanoseconds_in_a_map_are_kept_as_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    array = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())).cast(pa.map_(pa.string(), pa.timestamp("ns")))
    assert arrow(tmp_path / "x.arrow", array)[0]["a"] == [["k", "1970-01-01 00:00:00.000000001"]]


@pytest.mark.parametrize(
    "kinds, values",
    [
        (("uint64", "int64"), (2**64 - 1, -1)),
        (("int64", "float64"), (2**60 + 1, 1.5)),
        (("float64", "int64"), (1.5, 1)),
        (("int64", "int8"), (300, 1)),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_numbers_of_lists_keep_their_value_or_are_refused(tmp_path, kinds, values, first):
    """The files of a folder may give a column of lists different types of numbers."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    order = (first, 1 - first)
    for number, own in enumerate(order):
        column = pa.array([[values[own]]], pa.list_(getattr(pa, kinds[own])()))
        parquet.write_table(pa.table({"a": column}), tmp_path / f"{number}.parquet")
    found, kept = FileDataset(tmp_path), 0
    for number, own in enumerate(order):
        try:
            assert found[number]["a"].tolist() == [values[own]]
            kept += 1
        except BadSample as error:
            assert "would change" in str(error)
    assert kept


def test_bytes_of_a_parquet_view_with_a_gap_stay_bytes(tmp_path):
    pa = pytest.importorskip("pyarrow", minversion="16")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"v": pa.array([None, b"a"], pa.binary_view())}), tmp_path / "p.parquet")
    assert [sample["v"] for sample in FileDataset(tmp_path / "p.parquet")] == [None, b"a"]
