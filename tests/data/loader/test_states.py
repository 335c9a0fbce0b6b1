"""The length of a loader, and its state in the middle of an epoch: what follows is right, or refused."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from tests.data.loader.test_loader import Drawing, Numbers, ids_of

from paceline.core.errors import UsageError
from paceline.data import Loader


def loader(batch_size: int = 4, **settings) -> Loader:
    return Loader(Numbers(23), batch_size, **{"shuffle": True, "seed": 1, "threads": 0} | settings)


@pytest.mark.parametrize("ends", ["even", "drop", "pad"])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_the_length_is_the_number_of_batches_of_each_rank(ends, world, batch_size):
    ranks = [loader(batch_size, ends=ends, rank=rank, world=world) for rank in range(world)]
    assert {len(list(one)) for one in ranks} == {len(ranks[0])}
    list(islice(ranks[0], 1))
    rest = loader(batch_size, ends=ends, rank=0, world=world)
    rest.load_state_dict(ranks[0].state_dict())
    assert len(rest) == len(ranks[0]) == 1 + len(list(rest))


@pytest.mark.parametrize("ends", ["even", "drop", "pad"])
@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"seed": 9, "window": 1, "lanes": 3}])
@pytest.mark.parametrize("batch_size", [1, 5, 19, 23])
def test_another_batch_size_goes_on_with_the_next_sample(batch_size, settings, ends):
    whole, first = ids_of(loader()), loader()
    list(islice(first, 2))
    rest = loader(batch_size, ends=ends, **settings)
    rest.load_state_dict(first.state_dict())
    found = ids_of(rest)
    if ends == "drop":
        assert found == whole[8 : 8 + 15 // batch_size * batch_size]
    else:
        assert found[:15] == whole[8:] and found[15:] == whole[: -15 % batch_size if ends == "pad" else 0]


def test_a_batch_size_that_is_set_is_that_of_the_next_loop():
    changed = loader()
    loop = iter(changed)
    assert len(next(loop)) == 4
    changed.batch_size = 5
    assert [len(batch) for batch in loop] == [4, 4, 4, 4, 3]
    assert [len(batch) for batch in changed] == [5, 5, 5, 5, 3] and len(changed) == 5
    changed.batch_size = 0
    with pytest.raises(UsageError, match="batch_size is 0"):
        len(changed)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_epoch_that_is_set_within_a_loop_is_that_of_the_next_loop(epoch):
    """As with torch's DistributedSampler. What samples draw stays that of the loop's own epoch, too."""
    whole, changed = (Loader(Drawing(24), 4, True, seed=5, threads=0) for _ in range(2))
    loop = iter(changed)
    taken = [next(loop)]
    changed.set_epoch(epoch)
    assert (changed.state_dict()["epoch"], changed.state_dict()["consumed"]) == (0, 4)
    assert torch.equal(torch.cat([*taken, *loop]), torch.cat(list(whole)))
    whole.set_epoch(epoch or 1)  # the loop's own epoch changes nothing: the next one follows
    assert torch.equal(torch.cat(list(changed)), torch.cat(list(whole)))


def test_a_state_that_is_loaded_ends_the_loop():
    one = loader()
    state = one.state_dict()
    loop = iter(one)
    next(loop), next(loop)
    one.load_state_dict(state)
    with pytest.raises(UsageError, match="load_state_dict ended this loop"):
        next(loop)
    assert ids_of(one) == ids_of(loader())


DAMAGED = [
    ({"seed": "x"}, "seed 'x'"),
    ({"shuffle": "no"}, "shuffle 'no'"),
    ({"epoch": -1}, "epoch -1, which must be a whole number of 0 or more"),
    ({"lanes": 0}, "lanes 0"),
    ({"window": 0}, "window 0"),
    ({"consumed": 3.7}, "consumed 3.7"),
    ({"consumed": 24}, "consumed 24 of 23"),
    ({"epoch": None}, "epoch None"),
]


@pytest.mark.parametrize("wrong, said", DAMAGED)
def test_a_damaged_state_is_refused_and_changes_nothing(wrong, said):
    one = loader()
    before = one.state_dict()
    with pytest.raises(UsageError, match=said):
        one.load_state_dict(before | wrong)
    assert one.state_dict() == before
