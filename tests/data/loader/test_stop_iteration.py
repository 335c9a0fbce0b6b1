"""StopIteration in the user's code: an error that names the sample, never the end of the epoch."""

from __future__ import annotations

import numpy as np
import pytest
from tests.data.making import converted

from paceline.data import Loader, ShardedDataset
from paceline.data.reading.sharded import sample_keys

WAYS = pytest.mark.parametrize("way", [{"threads": 0}, {"threads": 2}, {"processes": 1}], ids=str)


class Stops:
    """A Dataset that raises StopIteration for some samples."""

    def __init__(self, *bad: int) -> None:
        self._bad = bad

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> int:
        return next(iter([])) if number in self._bad else number


class StopsAtOnce(Stops):
    """The same, with all samples of a batch in one call."""

    def __getitems__(self, numbers: list[int]) -> list[int]:
        return [self[number] for number in numbers]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 24)


def stops_at_8(samples):
    return next(iter([])) if samples[0] == 8 else samples


def changed(batch, generator):
    return stops_at_8(batch)


def of_sample(sample):
    return next(iter([])) if sample["__key__"] == KEY else sample["label"]


KEY = "never"


@WAYS
@pytest.mark.parametrize(
    ("dataset", "functions", "name"),
    [
        (Stops(9), {}, "sample 9"),
        (StopsAtOnce(9), {}, "samples 8 to 11"),
        (Stops(), {"collate_fn": stops_at_8}, "the batch of sample 8"),
        (Stops(), {"collate_fn": list, "batch_transform": changed}, "the batch of sample 8"),
    ],
    ids=["sample", "samples", "collate_fn", "batch_transform"],
)
def test_stop_iteration_is_an_error(way, dataset, functions, name):
    with pytest.raises(RuntimeError, match=f"the code for {name}.* raised StopIteration"):
        list(Loader(dataset, 4, **functions, **way))


@WAYS
def test_stop_iteration_in_a_transform_of_shards_is_an_error(way, shards, monkeypatch):
    (key,) = sample_keys(shards, shards.places(np.array([9])))
    monkeypatch.setattr(f"{__name__}.KEY", key)
    with pytest.raises(RuntimeError, match=f"{key}.* raised StopIteration"):
        list(Loader(shards, 4, columns=["__key__", "label"], transform=of_sample, collate_fn=list, **way))


@WAYS
@pytest.mark.parametrize("kind", [Stops, StopsAtOnce])
def test_a_sample_with_stop_iteration_is_skipped(way, kind):
    loader = Loader(kind(3, 9), 4, collate_fn=list, on_error="skip", **way)
    assert sum(map(len, loader)) == 24 and loader.report().bad_samples == 2
