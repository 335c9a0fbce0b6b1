"""Batches by tokens: each sample once, no batch above the budget, the same on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import UsageError
from paceline.data.order.slices import Slice
from paceline.data.order.token_budget import budget_coming, budget_plan, budget_planned, budget_steps_left

MOST = 64
lengths = st.lists(st.integers(1, MOST), min_size=1, max_size=300).map(lambda found: np.array(found, np.int64))
seeds = st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))


def steps(plan, consumed, world, ends, most=3):
    """What each rank takes in each step, and what is consumed after it."""
    found = []
    for rank in range(world):
        share = Slice(rank=rank, world=world, batch=1, ends=ends)
        pieces = list(budget_planned(plan, consumed, share, most))
        own = [pair for after, places in pieces for pair in zip(after, map(np.ndarray.tolist, places), strict=True)]
        assert len(own) == budget_steps_left(plan, consumed, share)
        found.append(own)
    assert len({len(own) for own in found}) == 1
    return [list(step) for step in zip(*found, strict=True)]


@settings(max_examples=60, deadline=None)
@given(lengths, seeds, st.integers(1, 5), st.sampled_from(["even", "drop", "pad"]), st.data())
def test_all_steps_of_all_ranks(lengths, seeds, world, ends, data):
    plan = budget_plan(lengths, MOST, seeds)
    whole = steps(plan, 0, world, ends)
    taken = [position for step in whole for _, own in step for position in own]
    assert all(own and len(own) * lengths[own].max() <= MOST for step in whole for _, own in step)
    assert all(len({after for after, _ in step}) == 1 for step in whole)
    if ends == "pad":
        assert set(taken) == set(range(len(lengths)))
    else:
        assert len(set(taken)) == len(taken)
        batches_left_out = len(plan.ends) % world if ends == "drop" else 0
        assert (
            len(taken) >= plan.ends[len(plan.ends) - batches_left_out - 1] - (world - 1) * (ends == "even") or not whole
        )
    if whole:
        stop = data.draw(st.integers(1, len(whole)))
        consumed = whole[stop - 1][0][0]
        assert steps(plan, consumed, world, ends) == whole[stop:]


@settings(max_examples=30, deadline=None)
@given(lengths, seeds, st.integers(1, 4), st.integers(1, 4))
def test_another_number_of_ranks_goes_on_with_the_next_batch(lengths, seeds, before, after):
    plan = budget_plan(lengths, MOST, seeds)
    begun = steps(plan, 0, before, "drop")[:2]
    consumed = begun[-1][0][0] if begun else 0
    rest = steps(plan, consumed, after, "pad")
    taken = [own for step in begun + rest for _, own in step]
    batches = [plan.batch(number).tolist() for number in range(len(plan.ends))]
    assert taken[: len(batches)] == batches


def test_batches_have_samples_of_similar_length_and_are_mixed():
    chance = np.random.default_rng(0)
    lengths = chance.integers(1, 1000, 20_000)
    plan = budget_plan(lengths, 8000, (1, 2))
    batches = [lengths[plan.batch(number)] for number in range(len(plan.ends))]
    padded = sum(len(own) * own.max() for own in batches)
    assert lengths.sum() / padded > 0.95  # in batches of 8 as they come: 0.56
    longest = [own.max() for own in batches]
    assert abs(np.corrcoef(longest[1:], longest[:-1])[0, 1]) < 0.1
    other = budget_plan(lengths, 8000, (1, 3))
    assert not np.array_equal(plan.positions[:100], other.positions[:100])


def test_what_comes_next_is_foreseen():
    plan = budget_plan(np.full(100, 8), 16, (0, 0))
    share = Slice(rank=1, world=2, batch=1)
    foreseen = budget_coming(plan, 8, share, 6).tolist()
    coming = [places for _, own in budget_planned(plan, 8, share, 2) for places in own]
    assert foreseen == np.concatenate(coming[:3]).tolist()


def test_a_position_within_a_batch_is_refused():
    plan = budget_plan(np.full(10, 8), 16, None)
    with pytest.raises(UsageError, match="not the end of a batch"):
        budget_steps_left(plan, 3, Slice(rank=0, world=1, batch=1))
