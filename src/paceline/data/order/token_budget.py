"""Batches of samples of similar length with at most `max_tokens` tokens each (length bucketing).

The sequence of an epoch is cut into pools of positions. A pool is sorted by length, the longest samples first, and cut
into batches of as many samples as fit: the number of samples times the longest length is at most the budget. The
batches of a pool are then shuffled. The batches depend on seed, epoch and lengths, not on the number of ranks: in a
step, N ranks take the next N batches. The state is the number of consumed samples, which is the end of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.order.counter_rng import key_of, permutation
from paceline.data.order.slices import Slice

Numbers = NDArray[np.int64]
_POOL = 4096  # positions, at least
_POOL_BATCHES = 64  # batches, at least
_OF_POOLS = 7  # what a permutation is for


@dataclass(frozen=True)
class BudgetPlan:
    """The batches of an epoch."""

    positions: Numbers  # in the sequence of the epoch, in the order of batches
    ends: Numbers  # the number of samples up to the end of each batch

    def batch(self, number: int) -> Numbers:
        """Return the positions of a batch."""
        return self.positions[self.ends[number - 1] if number else 0 : self.ends[number]]


def budget_plan(lengths: Numbers, max_tokens: int, seeds: tuple[int, int] | None) -> BudgetPlan:
    """Cut an epoch into batches.

    Args:
        lengths: The length of the sample at each position of the sequence, in tokens, from 1 to `max_tokens`.
        max_tokens: The limit of a batch, with padding.
        seeds: Seed and epoch for shuffling the batches of a pool; None to keep them in order of length.
    """
    usual = max(1.0, float(lengths.mean())) if len(lengths) else 1.0
    pool = max(_POOL, int(_POOL_BATCHES * max_tokens / usual))
    positions, sizes = [], [0]
    for number, begin in enumerate(range(0, len(lengths), pool)):
        order = begin + np.argsort(-lengths[begin : begin + pool], kind="stable")
        edges = _edges(lengths[order], max_tokens)
        batches = np.split(order, edges)
        if seeds is not None:
            batches = [batches[turn] for turn in permutation(key_of(*seeds, _OF_POOLS, number), len(batches)).tolist()]
        positions += batches
        sizes += [len(batch) for batch in batches]
    together = np.concatenate(positions) if positions else np.empty(0, np.int64)
    return BudgetPlan(together, np.cumsum(sizes[1:], dtype=np.int64))


def _edges(lengths: Numbers, max_tokens: int) -> list[int]:
    """Return the starts of the batches after the first one; lengths are in descending order."""
    found, begin = list[int](), 0
    while (begin := begin + max_tokens // int(lengths[begin])) < len(lengths):
        found.append(begin)
    return found


def budget_steps_left(plan: BudgetPlan, consumed: int, share: Slice) -> int:
    """Return how many steps are left of an epoch, the same for all ranks.

    Raises:
        UsageError: `consumed` is not the end of a batch.
    """
    full, rest = divmod(len(plan.ends) - _first_batch(plan, consumed), share.world)
    if not rest or share.ends == "drop":
        return full
    samples = plan.ends[-1] - (plan.ends[-rest - 1] if rest < len(plan.ends) else 0)
    return full + int(share.ends == "pad" or samples >= share.world)


def _first_batch(plan: BudgetPlan, consumed: int) -> int:
    """Return the number of the batch that begins after `consumed` samples.

    Raises:
        UsageError: `consumed` is not the end of a batch.
    """
    found = int(np.searchsorted(plan.ends, consumed, side="right"))
    if consumed and (not found or plan.ends[found - 1] != consumed):
        raise UsageError(
            f"the state has consumed {consumed:,} samples, which is not the end of a batch; give the max_tokens= and "
            "length= that the state was saved with"
        )
    return found


def budget_planned(
    plan: BudgetPlan, consumed: int, share: Slice, most: int
) -> Iterator[tuple[list[int], list[Numbers]]]:
    """Yield the steps that are left, several at a time, as `paceline.data.order.slices.planned` does.

    Args:
        plan: The batches of the epoch.
        consumed: The samples that all ranks together have consumed.
        share: The rank.
        most: The number of steps at a time.
    """
    first, left = _first_batch(plan, consumed), budget_steps_left(plan, consumed, share)
    for step in range(0, left, most):
        numbers = range(first + step * share.world, first + min(left, step + most) * share.world, share.world)
        ends = [int(plan.ends[min(number + share.world, len(plan.ends)) - 1]) for number in numbers]
        yield ends, [_own_batch(plan, number, share) for number in numbers]


def _own_batch(plan: BudgetPlan, first: int, share: Slice) -> Numbers:
    """Return the positions of a rank in the step that begins with a batch."""
    if first + share.world <= len(plan.ends) or share.ends == "pad":
        return plan.batch((first + share.rank) % len(plan.ends))
    return _split([plan.batch(number) for number in range(first, len(plan.ends))], share.world)[share.rank]


def _split(batches: list[Numbers], world: int) -> list[Numbers]:
    """Return `world` batches by repeatedly halving the one with the most samples; halves fit the budget."""
    while len(batches) < world:
        place = max(range(len(batches)), key=lambda turn: len(batches[turn]))
        batches[place : place + 1] = np.array_split(batches[place], 2)
    return batches


def budget_coming(plan: BudgetPlan, consumed: int, share: Slice, most: int) -> Numbers:
    """Return about `most` positions that a rank takes after so many consumed samples."""
    found, count = [np.empty(0, np.int64)], 0
    for number in range(_first_batch(plan, consumed) + share.rank, len(plan.ends), share.world):
        if count >= most:
            break
        found.append(plan.batch(number))
        count += len(found[-1])
    return np.concatenate(found)
