"""Is the way to a loss compared fairly?"""

from __future__ import annotations

import numpy as np
import pytest

from paceline.tune.search.quality import TimedLosses, compare_loss_curves, time_to


def curve(step_s: float, steps: int = 400, rate: float = 0.01, floor: float = 0.1, seed: int = 0) -> TimedLosses:
    noise = 0.01 * np.random.default_rng(seed).standard_normal(steps)
    losses = floor + np.exp(-rate * np.arange(steps)) + noise
    return TimedLosses(seconds=step_s * np.arange(1, steps + 1), losses=losses)


def test_the_same_way_in_half_the_time():
    found = compare_loss_curves(
        [curve(0.02, seed=s) for s in range(3)], [curve(0.01, seed=s + 9) for s in range(3)], [0, 1, 2]
    )
    assert found.reached == 3
    assert found.speedup.low <= 2.0 <= found.speedup.high
    assert found.speedup.value == pytest.approx(2.0, rel=0.1)
    assert found.passed


def test_faster_steps_that_go_half_as_far_gain_nothing():
    found = compare_loss_curves(
        [curve(0.02, seed=s) for s in range(3)], [curve(0.01, 800, 0.005, seed=s) for s in range(3)], [0, 1, 2]
    )
    assert found.speedup.low <= 1.0 <= found.speedup.high


def test_a_loss_that_is_not_reached_is_not_verified():
    worse = [curve(0.01, floor=0.5, seed=s) for s in range(3)]
    found = compare_loss_curves([curve(0.02, seed=s) for s in range(3)], worse, [0, 1, 2])
    assert (found.reached, found.speedup, found.passed) == (0, None, False)
    assert [one.candidate_s for one in found.seeds] == [None] * 3


def test_a_certainly_longer_way_does_not_pass():
    found = compare_loss_curves(
        [curve(0.01, seed=s) for s in range(3)], [curve(0.03, seed=s) for s in range(3)], [0, 1, 2]
    )
    assert not found.passed


def test_no_loss_is_no_comparison():
    broken = TimedLosses(seconds=np.arange(50.0), losses=np.full(50, np.nan))
    assert compare_loss_curves([broken], [curve(0.01)], [0]) is None


def test_one_lucky_batch_is_not_the_loss_reached():
    losses = np.ones(100)
    losses[10] = 0.0
    assert time_to(TimedLosses(seconds=np.arange(100.0), losses=losses), 0.5) is None
