"""Batches made one ahead: the same, in the same order, errors in their turn. The copy itself needs a GPU."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, dataloader

from paceline.improve.child.device_prefetch import mapped, patch_iterator

Pair = namedtuple("Pair", "x y")


class Played:
    """Copies nothing, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def begin(self, batch: Any) -> Any:
        self.asked.append(f"begin {batch[0].item()}")
        return batch

    def hand_over(self, begun: Any) -> Any:
        self.asked.append(f"hand over {begun[0].item()}")
        return begun


class Numbers(Dataset):
    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"sample {index} is broken")
        return index


def ahead(played: Played | None, bad: int | None = None, workers: int = 0) -> DataLoader:
    """A loader of four batches of two; with a kept worker, where there is one."""
    kind = dataloader._MultiProcessingDataLoaderIter if workers else dataloader._SingleProcessDataLoaderIter

    class Ahead(kind):
        pass

    class Loader(DataLoader):
        def _get_iterator(self):
            return Ahead(self)

    patch_iterator(Ahead, lambda: played)
    return Loader(Numbers(bad), 2, num_workers=workers, persistent_workers=bool(workers))


def test_the_next_copy_begins_when_a_batch_is_handed_out_and_not_before():
    played = Played()
    loader = ahead(played)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert played.asked[:4] == ["begin 0", "hand over 0", "begin 2", "hand over 2"]
    assert len(loader) == 4
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_epoch_that_is_broken_off_leaves_nothing_for_the_next():
    loader = ahead(Played(), workers=1)
    for _ in range(2):
        assert next(iter(loader)).tolist() == [0, 1]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_error_comes_in_its_turn():
    batches = iter(ahead(Played(), bad=2))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(ValueError, match="sample 2 is broken"):
        next(batches)
    assert next(batches).tolist() == [4, 5]


def test_where_nothing_is_to_be_copied_nothing_changes():
    assert [batch.tolist() for batch in ahead(None)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_batch_keeps_its_containers():
    batch = OrderedDict(pair=Pair(torch.ones(2), "name"), many=[torch.ones(1), (torch.ones(3), 5)], none=None)
    twice = mapped(batch, torch.Tensor, lambda tensor: 2 * tensor)
    assert type(twice) is OrderedDict
    assert type(twice["pair"]) is Pair
    assert twice["pair"].x.tolist() == [2, 2]
    assert twice["pair"].y == "name"
    assert twice["many"][0].item() == 2
    assert twice["many"][1][0].tolist() == [2, 2, 2]
    assert (twice["many"][1][1], twice["none"]) == (5, None)
    assert batch["many"][0].item() == 1
