from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.statistics import (
    drift,
    mean_interval,
    median_interval,
    paired_ratio,
    proportion_interval,
    slope_interval,
    t_975,
    t_quantile,
    thin,
    warmup_length,
)

finite = st.floats(-1e6, 1e6)


# -- median_interval ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [6, 7, 10, 25, 60, 200])
@pytest.mark.parametrize("kind", ["lognormal", "two humps", "heavy tail"])
def test_the_interval_covers_the_median(count, kind):
    random = np.random.default_rng(count)
    covered = 0
    for _ in range(300):
        if kind == "lognormal":
            values, true = random.lognormal(0.0, 0.5, count), 1.0
        elif kind == "two humps":
            values, true = np.where(random.random(count) < 0.6, 1.0, 3.0) + random.normal(0, 0.1, count), None
            true = 1.0 + 0.1 * 0.9674215661017014  # Phi^-1(5/6): the median of the mixture lies in the first hump
        else:
            values, true = random.standard_cauchy(count) + 10, 10.0
        found = median_interval(values)
        covered += found.low <= true <= found.high
    assert covered >= 0.93 * 300


def test_its_level_is_exact():
    """The chance that the median lies between two order statistics is a binomial sum, whatever the distribution."""
    for count in range(6, 400):
        found = median_interval(np.arange(count, dtype=float))
        low, high = int(found.low), int(found.high)
        inside = sum(math.comb(count, k) for k in range(low + 1, high + 1)) / 2**count
        assert inside >= 0.945, count


def test_it_narrows_as_observations_come():
    widths = []
    for count in (10, 100, 1000):
        found = median_interval(np.linspace(0, 1, count))
        widths.append(found.high - found.low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_of_a_few_values_it_is_the_range(count):
    found = median_interval(np.arange(count, dtype=float))
    assert (found.low, found.high, found.count) == (0.0, count - 1.0, count)


def test_of_nothing_there_is_none():
    assert median_interval(np.array([])) is None


@given(st.lists(finite, min_size=1, max_size=200))
@settings(deadline=None)
def test_it_holds_the_median(values):
    found = median_interval(np.array(values))
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert found.value == np.median(values)


# -- warmup_length -----------------------------------------------------------------------------------


def walls(slow: int, count: int, factor: float = 10.0, scatter: float = 0.05) -> np.ndarray:
    values = np.random.default_rng(3).normal(1.0, scatter, count).clip(0.5)
    values[:slow] *= factor
    return values


@pytest.mark.parametrize("slow", [1, 2, 3, 5, 12])
def test_slow_steps_at_the_start_are_warm_up(slow):
    assert warmup_length(walls(slow, 60)) == slow


def test_the_first_step_always_is():
    assert warmup_length(walls(0, 60)) == 1


def test_at_most_a_third_is():
    assert warmup_length(walls(40, 60)) <= 20
    assert warmup_length(walls(20, 60)) == 20


@pytest.mark.parametrize("count, expected", [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)])
def test_a_few_steps(count, expected):
    assert warmup_length(np.ones(count)) == expected


def test_a_slow_step_now_and_then_is_no_warm_up():
    values = np.ones(90)
    values[::10] = 8.0
    assert warmup_length(values) == 1


def test_slow_in_every_third_step_is_no_warm_up():
    values = np.ones(90)
    values[2::3] = 8.0
    assert warmup_length(values) == 1


def test_steps_that_only_get_faster():
    values = np.linspace(3.0, 1.0, 90)  # the later half's median is 1.5
    assert warmup_length(values) == 30  # a third, and no more


@given(st.lists(st.floats(1e-5, 10.0), max_size=120))
@settings(deadline=None)
def test_it_leaves_most_steps(values):
    found = warmup_length(np.array(values))
    assert 0 <= found <= max(1, len(values) // 3)
    assert found < max(1, len(values)) or len(values) == 0


# -- drift, slope, thin ------------------------------------------------------------------------------


def test_a_steady_series_does_not_drift():
    ratio, trend = drift(walls(0, 400))
    assert ratio == pytest.approx(1.0, abs=0.02)
    assert abs(trend) < 0.6


def test_a_growing_series_drifts():
    ratio, trend = drift(np.linspace(1.0, 2.0, 400) * walls(0, 400))
    assert ratio == pytest.approx(1.875 / 1.125, rel=0.03)
    assert trend == 1.0


def test_a_falling_series_drifts_down():
    ratio, trend = drift(np.linspace(2.0, 1.0, 64))
    assert ratio < 1
    assert trend == -1.0


def test_a_single_jump_is_no_steady_growth():
    values = np.ones(160)
    values[100:] = 2.0
    _, trend = drift(values)
    assert 0 < trend < 0.7


def test_outliers_do_not_drift():
    values = np.ones(160)
    values[150:153] = 100.0
    assert drift(values) == (1.0, 0.0)


@pytest.mark.parametrize("values", [np.ones(15), np.array([]), np.zeros(40)])
def test_too_short_or_nothing_at_all(values):
    assert drift(values) == (1.0, 0.0)


@pytest.mark.parametrize("count", [8, 80])
def test_slope_interval_holds_the_slope_19_times_in_20(count):
    random = np.random.default_rng(0)
    x = np.arange(count, dtype=float)
    found = [slope_interval(x, 3.0 * x + random.normal(0, 4, count)) for _ in range(400)]
    held = sum(one is not None and one.low <= 3.0 <= one.high for one in found)
    assert 0.92 <= held / 400 <= 0.98


@given(st.floats(-100, 100), st.floats(-100, 100), st.integers(4, 50))
@settings(deadline=None)
def test_slope_of_a_line_is_its_slope(rise, offset, count):
    x = np.arange(count, dtype=float)
    found = slope_interval(x, rise * x + offset)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((rise,) * 3, abs=1e-6)


@pytest.mark.parametrize("x", [np.arange(3.0), np.zeros(10)])
def test_no_slope_of_few_points_or_where_time_stands_still(x):
    assert slope_interval(x, np.arange(len(x), dtype=float)) is None


@given(st.integers(0, 5000), st.integers(2, 400))
@settings(deadline=None)
def test_thinning_keeps_the_ends_and_the_order(count, most):
    found = thin(np.zeros(count), most)
    assert len(found) == len(set(found.tolist())) <= max(count if count <= most else most, 0)
    assert found.tolist() == sorted(found.tolist())
    if count:
        assert (found[0], found[-1]) == (0, count - 1)
    if count <= most:
        assert found.tolist() == list(range(count))
    elif len(found) > 2:
        gaps = np.diff(found)
        assert gaps.max() - gaps.min() <= 1


# -- means and ratios of dependent steps --------------------------------------------------------------

# Student's t at 97.5% by degrees of freedom, from printed tables.
T_TABLE = {1: 12.706, 2: 4.303, 4: 2.776, 5: 2.571, 9: 2.262, 19: 2.093, 30: 2.042, 120: 1.980}


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


# -- proportions and other quantiles of Student's t ---------------------------------------------------


@pytest.mark.parametrize(("freedom", "t"), [(1, 3.078), (2, 1.886), (4, 1.533), (10, 1.372), (30, 1.310)])
def test_students_t_at_90_percent_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert t_quantile(1.2816, freedom) == pytest.approx(t, abs=6e-3)


@pytest.mark.parametrize(
    ("count", "total", "low", "high"), [(0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (10, 10, 0.722, 1.0)]
)
def test_the_interval_of_a_proportion_is_wilsons(count: int, total: int, low: float, high: float) -> None:
    assert proportion_interval(count, total) == pytest.approx((low, high), abs=1e-3)
