"""Several ranks: the same batches for any number of them, and after a resume on another number."""

from __future__ import annotations

from itertools import islice

import pytest
from tests.data.loader.test_loader import Numbers
from tests.data.making import converted
from torch.utils.data import Subset

from paceline.core.errors import UsageError
from paceline.data import Loader, ShardedDataset

STEP = 12  # samples of all ranks together
WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 70, shard_bytes=1 << 12)


def keys(sample) -> str:
    return sample["__key__"]


def loaders(data, world: int, **settings) -> list[Loader]:
    """A loader of each rank; batches are lists of samples."""
    if not isinstance(data, Numbers):
        settings |= {"transform": keys, "columns": ["__key__"]}
    settings = {"shuffle": True, "seed": 3, "threads": 0, "collate_fn": list, **settings}
    return [Loader(data, STEP // world, rank=rank, world=world, **settings) for rank in range(world)]


def steps_of(ranks: list[Loader], most: int | None = None) -> list[list]:
    """The samples of each step of an epoch, in the order that all ranks together take them."""
    steps = zip(*(list(islice(loader, most)) for loader in ranks), strict=True)
    return [[batch[place] for place in range(len(step[0])) for batch in step if place < len(batch)] for step in steps]


def data_of(kind: str, shards: ShardedDataset):
    return {"shards": shards, "subset": Subset(shards, [*range(60, 5, -1), 7]), "own": Numbers(67)}[kind]


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"lanes": 5, "window": 2}, {"ends": "pad"}])
@pytest.mark.parametrize("kind", ["shards", "subset", "own"])
def test_any_number_of_ranks_takes_the_same_steps(shards, kind, settings):
    data, settings = data_of(kind, shards), {"ends": "drop", **settings}
    found = []
    for world in WORLDS:
        ranks = loaders(data, world, **settings)
        found.append([steps_of(ranks) for _ in range(2)])
    assert all(one == found[0] for one in found)
    assert len(found[0][0]) == len(data) // STEP + (settings["ends"] == "pad")
    assert (found[0][0] == found[0][1]) == (settings.get("shuffle") is False)


@pytest.mark.parametrize("kind", ["shards", "own"])
@pytest.mark.parametrize("before, after", [(1, 3), (4, 1), (2, 4), (3, 2)])
def test_after_a_resume_on_other_ranks_the_steps_are_those_of_one_run(shards, kind, before, after):
    data = data_of(kind, shards)
    whole = loaders(data, 1, ends="drop")
    epochs = [steps_of(whole) for _ in range(3)]
    first = loaders(data, before, ends="drop")
    assert steps_of(first, 2) == epochs[0][:2]
    rest = loaders(data, after, ends="drop")
    for loader in rest:
        loader.load_state_dict(first[0].state_dict())
    assert [steps_of(rest) for _ in range(3)] == [epochs[0][2:], *epochs[1:]]


EMPTY = [
    (0, 1, {}, "has no samples"),
    (0, 1, {"ends": "pad"}, "has no samples"),
    (3, 4, {}, '3 samples for 4 ranks.*at most 3 ranks, or ends="pad"'),
    (10, 4, {"ends": "drop"}, r"takes 12 samples \(batch_size 3 x 4 ranks\).*batch_size of at most 2"),
    (3, 4, {"ends": "drop"}, "use at most 3 ranks"),
    (10, 1, {"ends": "drop"}, "batch_size of at most 10"),
]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("count, world, settings, said", EMPTY)
def test_an_epoch_without_a_batch_is_refused_on_all_ranks(monkeypatch, count, world, settings, said, given):
    """When the loader is made, or when a loop begins if the launcher says how many ranks there are."""
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        where = {"rank": rank, "world": world} if given else {}
        with pytest.raises(UsageError, match=said):
            loader = Loader(Numbers(count), STEP // world, threads=0, **where, **settings)
            assert not given and world > 1 and len(loader) == 0
            next(iter(loader))


@pytest.mark.parametrize("ends, left", [("drop", 2), ("even", 2), ("pad", 0)])
def test_nothing_left_of_an_epoch_is_no_error_after_a_resume(ends, left):
    """A state with fewer samples left than a step takes: its loop ends at once, and the next loop is the next epoch."""
    first = Loader(Numbers(14), 3, ends="drop", rank=0, world=4, threads=0)
    list(islice(first, 1))
    rest = loaders(Numbers(14), 3, ends=ends)
    for loader in rest:
        loader.load_state_dict(first.state_dict())
    assert len(steps_of(rest)) == (1 if ends == "pad" else 0)
    assert len({number for step in steps_of(rest) for number in step}) == 14 - left
