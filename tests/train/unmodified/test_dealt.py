"""Batches that ranks of a library take parts of: together they are those of one process, in the same order."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from paceline.train.unmodified import dealt
from paceline.train.unmodified.state import Refusal, Spread


def of_ranks(rows: int, ranks: int, *, weighs: bool, drop_last: bool = False) -> list[list[list[int]]]:
    small = BatchSampler(SequentialSampler(range(rows)), 8 // ranks, drop_last)
    return [list(dealt.of_small(small, ranks, rank, weighs=weighs)) for rank in range(ranks)]


@pytest.mark.parametrize(("rows", "weighs"), [(44, False), (45, True), (41, False), (48, False), (43, True)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_means_over_ranks_are_those_of_the_batches_of_one_process(rows, weighs, ranks):
    whole = list(BatchSampler(SequentialSampler(range(rows)), 8, False))
    for batch, *parts in zip(whole, *of_ranks(rows, ranks, weighs=weighs), strict=True):
        joined = [row for part in parts for row in part]
        if not weighs or len(batch) < ranks:
            assert len({len(part) for part in parts}) == 1
            assert sum(joined) / len(joined) == pytest.approx(sum(batch) / len(batch))
        else:
            assert joined == batch


def test_a_last_batch_that_is_dropped_stays_out():
    assert [len(batches) for batches in of_ranks(45, 2, weighs=False, drop_last=True)] == [5, 5]


def spread_of(rank: int) -> Spread:
    place = {"layout": "dp=2", "rank": rank, "ranks": 2, "folder": "", "seed": 0, "port": 0, "devices": None}
    return Spread(torch, place)


def test_parts_are_of_the_order_that_one_process_draws():
    data = range(20)
    torch.manual_seed(3)
    whole = list(BatchSampler(RandomSampler(data), 8, False))
    parts = []
    for rank in range(2):
        torch.manual_seed(3)
        parts.append(list(dealt.Parts(spread_of(rank), BatchSampler(RandomSampler(data), 8, False))))
    assert [one + other for one, other in zip(*parts, strict=True)] == whole


def test_a_batch_that_ranks_cannot_share_equally_is_refused(capfd):
    parts = dealt.Parts(spread_of(0), [[1, 2], [3, 4, 5]])
    assert len(parts) == 2
    with pytest.raises(Refusal):
        list(parts)
    assert "has 3 rows, which 2 ranks cannot share equally" in capfd.readouterr().err
