"""Folders in the MDS format of MosaicML Streaming: all values come over, and what cannot be read is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from tests.data.making import jpeg, pixels
from tests.data.sources.mds_writing import write_mds

from paceline.core.errors import UsageError
from paceline.data.convert.convert import Options, convert
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources import BadSample
from paceline.data.sources.found import source_of

COLUMNS = {
    "bytes": "bytes",
    "count": "int",
    "document": "json",
    "fixed": "ndarray:float32:2,3",
    "free": "ndarray",
    "image": "jpeg",
    "level": "uint8",
    "pixels": "pil",
    "share": "float32",
    "text": "str",
    "typed": "ndarray:int16",
    "whole": "str_int",
}
SAMPLES = [
    {
        "bytes": bytes(range(number)),
        "count": -number * 10**12,
        "document": {"a": [number, None, "ü"]},
        "fixed": np.full((2, 3), number, np.float32),
        "free": np.arange(300.0 if number == 4 else 3).astype("float64" if number % 2 else "uint8").reshape(-1, 1),
        "image": jpeg(16, 16 + number, number),
        "level": 255 - number,
        "pixels": Image.fromarray(pixels(4 + number, 5, number)),
        "share": float(np.float32(number / 7)),
        "text": "zero \0 ü" * number,
        "typed": np.arange(number + 1, dtype=np.int16),
        "whole": number * 7,
    }
    for number in range(11)
]


def is_same(expected, found) -> bool:
    if isinstance(expected, Image.Image):
        return np.array_equal(np.asarray(expected), found)
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    return found == expected


@pytest.mark.parametrize("packed", [None, "zstd:7", "gz"])
def test_each_encoding_comes_over(tmp_path, packed):
    source = source_of(write_mds(tmp_path / "mds", COLUMNS, SAMPLES, 4, packed), None)
    convert(source, tmp_path / "shards", Options(seed=None, verbatim=True), 1, lambda done, whole: None)
    found = ShardedDataset(tmp_path / "shards")
    assert [source.sample(number)["image"].data for number in range(11)] == [one["image"] for one in SAMPLES]
    wrong = [
        (number, name)
        for number, sample in enumerate(SAMPLES)
        for name, value in sample.items()
        if name != "image" and not is_same(value, found[number][name])
    ]
    assert len(found) == len(SAMPLES) and not wrong


def edited(folder, change):
    """Change what the index says."""
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"])
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "harm, said",
    [
        (lambda folder: (folder / "index.json").unlink(), "no index.json"),
        (lambda folder: (folder / "shard.00001.mds").unlink(), "lacks shard.00001.mds"),
        (lambda folder: (folder / "shard.00001.mds").write_bytes(b"abc"), "3 of"),
        (lambda folder: edited(folder, lambda shards: shards[1].update(version=1)), "version 1"),
        (lambda folder: edited(folder, lambda shards: shards[1].update(column_names=["a", "c"])), "different columns"),
        (lambda folder: edited(folder, lambda shards: shards[0].update(column_encodings=["int", "pkl"])), "any code"),
        (lambda folder: edited(folder, lambda shards: shards[0].update(column_sizes=[8])), "damaged"),
        (lambda folder: edited(folder, lambda shards: shards[0].update(raw_data=7)), "cannot be read as the index"),
        (
            lambda folder: edited(folder, lambda shards: shards[1].update(samples=2)),
            "lists 2 samples for shard.00001.mds",
        ),
        (
            lambda folder: edited(folder, lambda shards: shards[0].update(samples=4)),
            "lists 4 samples for",
        ),
    ],
)
def test_what_cannot_be_read_as_a_whole_is_refused(tmp_path, harm, said):
    folder = write_mds(tmp_path / "mds", {"a": "int", "b": "str"}, [{"a": n, "b": "text"} for n in range(6)], 3, None)
    harm(folder)
    with pytest.raises(UsageError, match=said):
        source_of(folder, None)


def test_a_compressed_shard_with_another_count_is_refused_when_it_is_read(tmp_path):
    folder = write_mds(tmp_path / "mds", {"a": "int"}, [{"a": n} for n in range(6)], 3, "gz")
    edited(folder, lambda shards: shards[1].update(samples=2))
    source = source_of(folder, None)
    assert source.sample(2) == {"a": 2}
    with pytest.raises(UsageError, match="lists 2 samples for shard.00001.mds"):
        source.sample(3)


def test_a_damaged_sample_is_named(tmp_path):
    folder = write_mds(tmp_path / "mds", {"b": "str"}, [{"b": "text"} for _ in range(4)], 2, None)
    shard = folder / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    data[-8:-4] = b"\xff\0\0\0"  # the size of the last value
    shard.write_bytes(bytes(data))
    source = source_of(folder, None)
    assert source.sample(2)["b"].data == b"text"
    with pytest.raises(BadSample, match="shard.00001.mds, sample 1 is damaged"):
        source.sample(3)


def test_shards_that_the_index_does_not_list_are_told(tmp_path):
    folder = write_mds(tmp_path / "mds", {"a": "int"}, [{"a": n} for n in range(4)], 2, None)
    edited(folder, lambda shards: shards.pop())
    source = source_of(folder, None)
    assert len(source) == 2
    assert source.notes == [f"{folder} has shards that its index.json does not list: shard.00001.mds"]
