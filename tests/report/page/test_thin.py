"""Thinning: fewer points, no lost extreme, no time made up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report import sample

from paceline.report.page.thin import extremes, merged


@pytest.mark.parametrize("most", [1, 10, 500, 5000])
def test_merged_keeps_steps_time_and_the_slowest(most: int) -> None:
    points = sample.timeline(2000, sample.DATA_BOUND, 0.4, every=3)
    made = merged(points, most)
    assert len(made) <= most
    assert sum(one.steps for one in made) == sum(one.steps for one in points)
    assert sum(one.steps * one.step_s for one in made) == pytest.approx(sum(one.steps * one.step_s for one in points))
    assert max(one.slowest_s for one in made) == max(one.slowest_s for one in points)
    assert all(sum(one.shares) == pytest.approx(1) for one in made)


numbers = st.lists(st.none() | st.floats(allow_infinity=False), min_size=1, max_size=300)


@given(numbers, st.integers(min_value=2, max_value=50))
def test_extremes_are_kept(values: list[float | None], most: int) -> None:
    kept = extremes(values, most)
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    known = [value for value in values if value is not None and not math.isnan(value)]
    shown = [values[i] for i in kept if values[i] is not None and not math.isnan(values[i])]
    if known:
        assert (min(shown), max(shown)) == (min(known), max(known))
    assert len(kept) <= max(most * 3 // 2 + 5, 2)


def test_a_gap_stays_a_gap() -> None:
    values = [1.0] * 50 + [None] * 50 + [2.0] * 50
    shown = [values[i] for i in extremes(values, 12)]
    assert None in shown
