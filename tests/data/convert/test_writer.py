"""Shards that Python writes one sample after the other; whole, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.making import pixels

from paceline.core.errors import UsageError
from paceline.data import Loader, ShardedDataset, Writer
from paceline.data.convert.convert import Options, convert
from paceline.data.convert.verify import verify
from paceline.data.sources import BadSample
from paceline.data.sources.found import source_of


def sample(number: int) -> dict[str, object]:
    made = {"n": number, "image": Image.fromarray(pixels(16, 16, number)), "box": np.full((number % 3, 4), number)}
    return made | ({"note": {"words": ["a", number]}} if number % 2 else {})


def test_what_is_written_comes_back(tmp_path):
    with Writer(tmp_path / "shards", shard_mb=0.02, images="png", classes=["cat"]) as writer:
        for number in range(40):
            writer.write(sample(number))
    found = ShardedDataset(tmp_path / "shards")
    assert len(found.contents.shards) > 2 and list(found.contents.classes) == ["cat"]
    assert verify(found, lambda done, whole: None).problems == ()
    seen = [one for batch in Loader(found, 8, transform=dict, collate_fn=list, threads=0) for one in batch]
    for number, one in enumerate(seen):
        assert one["n"] == number and np.array_equal(one["image"], pixels(16, 16, number))
        assert np.array_equal(one["box"], sample(number)["box"]) and one["note"] == sample(number).get("note")
    assert sorted(path.suffix for path in (tmp_path / "shards").iterdir() if path.name.startswith(".")) == []


def reused_image(folder):
    canvas = Image.new("L", (2, 2))
    return canvas, lambda number: canvas.paste(number, (0, 0, 2, 2)), lambda value: value[0, 0]


def reused_file(folder):
    def change(number):
        Image.new("L", (2, 2), number).save(folder / f"{number}.png")
        box[0].close()
        box[0] = Image.open(folder / f"{number}.png")

    Image.new("L", (2, 2)).save(folder / "first.png")
    box = [Image.open(folder / "first.png")]
    return box, change, lambda value: value[0, 0]


def reused(value, change, first=lambda found: found[0]):
    return lambda folder: (value, change, first)


@pytest.mark.parametrize(
    "make",
    [
        reused(held := np.zeros(2, np.int64), held.fill),
        reused(tensor := torch.zeros(2, dtype=torch.int64), tensor.fill_),
        reused(numbers := [0], lambda number: numbers.__setitem__(0, number)),
        reused(fields := {"a": 0}, lambda number: fields.update(a=number), lambda found: found["a"]),
        reused(data := bytearray(1), lambda number: data.__setitem__(0, number)),
        reused_image,
        reused_file,
    ],
    ids=["array", "tensor", "list", "dict", "bytearray", "canvas", "closed image"],
)
def test_values_are_taken_when_they_are_written(tmp_path, make):
    value, change, first = make(tmp_path)
    with Writer(tmp_path / "shards", images="png") as writer:
        for number in range(20):
            change(number)
            writer.write({"x": value[0] if make is reused_file else value})
    found = ShardedDataset(tmp_path / "shards")
    assert [int(first(found[number]["x"])) for number in range(20)] == list(range(20))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([{"n": 1, "text": None}] * 3, "the first 3 samples have only None in text"),
        ([{"n": 1, "text": None}] * 20, "the first 16 samples have only None in text"),
        ([{}] * 16 + [{"n": 1}], "the first 16 samples are empty"),
        ([{}], "the first 1 samples are empty"),
    ],
)
def test_a_column_without_values_is_refused(tmp_path, samples, said):
    with pytest.raises(UsageError, match=said), Writer(tmp_path / "shards") as writer:
        for one in samples:
            writer.write(one)
    assert not (tmp_path / "shards" / "dataset.json").exists()


@pytest.mark.parametrize("numbers", [[1, 2.5, None], [None, 1, 2.5], [2.5, 1]])
def test_whole_numbers_and_others_give_a_column_of_floats(tmp_path, numbers):
    with Writer(tmp_path / "shards") as writer:
        for number in numbers:
            writer.write({"x": number})
    found = ShardedDataset(tmp_path / "shards")
    assert (
        found.contents.columns[0].kind == "float"
        and [one["x"] for one in map(found.__getitem__, range(len(found)))] == numbers
    )


def test_an_error_leaves_no_data_set(tmp_path):
    with pytest.raises(ZeroDivisionError), Writer(tmp_path / "shards", shard_mb=0.001) as writer:
        for number in range(30):
            writer.write({"n": number, "text": "words"})
        raise ZeroDivisionError
    assert list((tmp_path / "shards").glob("*.tar")) == []
    with Writer(tmp_path / "shards") as writer:
        writer.write({"n": 1})
    assert len(ShardedDataset(tmp_path / "shards")) == 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"n": "text"}, "sample 20: n: it is of kind text, but of kind int"),
        ({"n": 1, "new": 2}, "sample 20 has new, which none of the first 16 samples has"),
        ({"n": 2**70}, "64 bits"),
        ({"n": {1, 2}}, "a sample has a set"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(tmp_path, bad, said):
    with pytest.raises(BadSample, match=said), Writer(tmp_path / "shards") as writer:
        for number in range(20):
            writer.write({"n": number})
        writer.write(bad)


def test_a_folder_with_something_in_it_is_refused_and_so_is_nothing(tmp_path):
    with pytest.raises(UsageError, match="no samples were written"), Writer(tmp_path / "shards"):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        Writer(tmp_path / "other")


def test_two_writers_do_not_meet(tmp_path):
    early = Writer(tmp_path / "shards")
    with Writer(tmp_path / "shards") as writer:
        with (
            pytest.raises(UsageError, match="another Writer, which still runs"),
            Writer(tmp_path / "shards"),
        ):
            pass
        writer.write({"n": 1})
    with pytest.raises(UsageError, match="holds a data set"), early:
        pass
    assert len(ShardedDataset(tmp_path / "shards")) == 1


@pytest.mark.parametrize("kind", ["parquet", "h5"])
def test_groups_are_read_once_for_several_shards(tmp_path, monkeypatch, kind):
    import h5py
    import pyarrow
    import pyarrow.parquet

    values = np.random.default_rng(0).integers(0, 1 << 40, (600, 200))
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"x": list(values), "n": list(range(600))}), path, row_group_size=20)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values, chunks=(20, 200), compression="gzip")
            file["n"] = np.arange(600)
    read: list[int] = []
    own = pyarrow.parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        pyarrow.parquet.ParquetFile, "read_row_group", lambda self, group: read.append(group) or own(self, group)
    )
    done: list[int] = []
    options = Options(shard_bytes=1 << 17)
    convert(source_of(path, None), tmp_path / "one", options, 1, lambda count, whole: done.append(count))
    found = ShardedDataset(tmp_path / "one")
    assert len(found.contents.shards) > 4 and done[-1] == 600
    assert kind == "h5" or len(read) <= 64 + 2  # twice: for the fingerprint too
    source = source_of(path, None)
    monkeypatch.setattr(type(source), "reads_groups", False)
    convert(source, tmp_path / "two", options, 1, lambda count, whole: None)
    assert ShardedDataset(tmp_path / "two").contents.shards == found.contents.shards
    batch = next(iter(Loader(found, 600)))
    assert np.array_equal(batch["x"].numpy(), values[batch["n"].numpy()])


@pytest.mark.parametrize("name", ["q" * 80, "q" * 100, "q" * 300, "ä" * 60])
@pytest.mark.parametrize("value", [5, 0.5, "text", b"bytes", {"a": 1}])
def test_names_of_columns_may_be_long(tmp_path, name, value):
    with Writer(tmp_path / "shards") as writer:
        for number in range(3):
            writer.write({"n": number, name: value, "last": number})
    found = ShardedDataset(tmp_path / "shards")
    assert verify(found, lambda done, whole: None).problems == ()
    assert [found[number] for number in range(3)] == [{"n": n, name: value, "last": n} for n in range(3)]
    source = source_of(tmp_path / "shards" / "shard-000000.tar", None)
    convert(source, tmp_path / "again", Options(seed=None), 1, lambda done, whole: None)
    assert ShardedDataset(tmp_path / "again")[2]["n"] == 2 and name in ShardedDataset(tmp_path / "again")[2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([float("nan"), 1.0], "NaN or an infinity"),
        ({"a": [{"b": float("-inf")}]}, "NaN or an infinity"),
        ({1: "a"}, "keys are text"),
        ([(1, 2)], "tuples to lists"),
    ],
)
def test_the_reason_why_json_cannot_store_a_value_is_true(tmp_path, value, said):
    with pytest.raises(BadSample, match=f"sample 0: x: it .*{said}"), Writer(tmp_path / "shards") as writer:
        writer.write({"x": value})


@pytest.mark.parametrize("label", [5, 2, "cat", 1.0, [0]])
def test_a_label_without_a_class_is_refused(tmp_path, label):
    said = "label: it is .*, and the 2 classes have the numbers 0 to 1"
    with pytest.raises(BadSample, match=said), Writer(tmp_path / "shards", classes=["cat", "dog"]) as writer:
        writer.write({"n": 1, "label": label})


def test_a_label_may_be_missing_beside_classes(tmp_path):
    labels = [0, 1, None, -1]
    with Writer(tmp_path / "shards", classes=["cat", "dog"]) as writer:
        for label in labels:
            writer.write({"n": 1, "label": label})
    found = ShardedDataset(tmp_path / "shards")
    assert [found[number].get("label") for number in range(4)] == labels


def test_names_of_classes_are_utf8(tmp_path):
    with pytest.raises(UsageError, match="class .*udcff is not UTF-8"):
        Writer(tmp_path / "shards", classes=["cat", "\udcff"])


def test_samples_outside_of_the_block_are_refused(tmp_path):
    writer = Writer(tmp_path / "shards")
    with pytest.raises(UsageError, match="inside of its with block only"):
        writer.write({"x": 1})
    with writer:
        writer.write({"x": 1})
    with pytest.raises(UsageError, match="inside of its with block only"):
        writer.write({"x": 2})
    assert len(ShardedDataset(tmp_path / "shards")) == 1


@pytest.mark.parametrize("sample, kind", [((1, 2), "tuple"), (5, "int"), ([{"n": 1}], "list")])
def test_a_sample_is_a_dictionary(tmp_path, sample, kind):
    with pytest.raises(BadSample, match=f"sample 0 is a {kind}; give a dictionary"), Writer(tmp_path / "s") as writer:
        writer.write(sample)


def test_the_name_of_a_class_as_its_label_is_named(tmp_path):
    with pytest.raises(BadSample, match="label: it is 'cat', and"), Writer(tmp_path / "s", classes=["cat"]) as writer:
        writer.write({"label": "cat"})
