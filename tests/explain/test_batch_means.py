"""Do the intervals hold what they promise, for steps that depend on each other too?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.explain.batch_means import mean_interval, paired_ratio
from paceline.explain.statistics import t_975

# Student's t at 97.5% by degrees of freedom, from printed tables.
T_TABLE = {4: 2.776, 5: 2.571, 9: 2.262, 19: 2.093, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize(("freedom", "t"), T_TABLE.items())
def test_students_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert t_975(freedom) == pytest.approx(t, abs=1.2e-3)


def autocorrelated(random: np.random.Generator, count: int, memory: float) -> np.ndarray:
    """A series of mean 0 and deviation 1 whose neighbours correlate by `memory`."""
    shocks = random.standard_normal(count) * math.sqrt(1 - memory**2)
    values = np.empty(count)
    last = random.standard_normal()
    for i, shock in enumerate(shocks):
        last = values[i] = memory * last + shock
    return values


def covered(random: np.random.Generator, true: float, count: int, memory: float, trials: int) -> float:
    """Share of trials in which the interval of a ratio holds the true one."""
    hits = 0
    for _ in range(trials):
        before = 100 + 10 * autocorrelated(random, count, memory)
        after = true * (100 + 10 * autocorrelated(random, count, memory))
        ratio = paired_ratio(before, after)
        hits += ratio.low <= true <= ratio.high
    return hits / trials


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_interval_of_a_ratio_holds_the_truth(memory: float) -> None:
    share = covered(np.random.default_rng(7), 1.1, count=300, memory=memory, trials=200)
    assert 0.90 <= share <= 0.995


def test_steps_taken_for_independent_would_not_hold_it() -> None:
    """What the method is for: the plain standard error is far too small here."""
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(200):
        values = autocorrelated(random, 300, 0.8)
        hits += abs(values.mean()) <= 1.96 * values.std() / math.sqrt(300)
    assert hits / 200 < 0.65


def test_what_happens_in_the_same_steps_of_both_cancels() -> None:
    random = np.random.default_rng(1)
    base = np.full(300, 0.1)
    base[99::100] = 3.0  # an evaluation
    before, after = (base + 0.001 * random.standard_normal(300) for _ in range(2))
    ratio = paired_ratio(before, after)
    assert ratio.high - ratio.low < 0.01
    alone = mean_interval(before)
    assert (alone.high - alone.low) / alone.value > 0.3


def test_constant_steps_have_no_width() -> None:
    ratio = paired_ratio(np.full(40, 0.1), np.full(40, 0.12))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.2, 1.2, 1.2))
    assert ratio.count == 40


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-4, 10.0), st.floats(1e-4, 10.0)), min_size=5, max_size=120),
)
def test_any_series_have_an_interval_around_the_value(pairs: list[tuple[float, float]]) -> None:
    before, after = np.array(pairs).T
    ratio = paired_ratio(before, after)
    assert 0 <= ratio.low <= ratio.value <= ratio.high
    forward, back = ratio, paired_ratio(after, before)
    assert forward.value == pytest.approx(1 / back.value)
