"""What is said of a trial while the search goes on."""

from __future__ import annotations

import math

import pytest
from tests.report import tune_sample

from paceline.improve.goals import GOALS
from paceline.improve.wording import told

CACHED = {"loader": {"cache": True}}


@pytest.mark.parametrize(
    "goal, known, said",
    [
        (
            "time",
            {"speedup": tune_sample.factor(3.4, 0.0, math.inf, 1)},
            "3.40x (1 pair of blocks, too few for an interval)",
        ),
        (
            "time",
            {"speedup": tune_sample.factor(9.0, 5.0, math.inf, 6)},
            "9.00x (95% CI from 5.00x, no upper limit known, 6 pairs of blocks)",
        ),
        (
            "time",
            {"speedup": tune_sample.factor(3.4, 2.0, 5.0, 8)},
            "3.40x (95% CI 2.00–5.00, 8 pairs of blocks), no-win",
        ),
        (
            "memory",
            {"speedup": tune_sample.factor(0.8, 0.7, 0.9, 8), "saving": tune_sample.factor(1.3, 1.2, 1.4, 8)},
            "peak memory smaller by a factor of 1.30x (95% CI 1.20–1.40, 8 pairs of blocks), speed 0.80x",
        ),
        ("time", {"status": "failed", "reason": "it hung"}, "failed, it hung"),
    ],
)
def test_a_trial_is_told_in_what_is_the_goal(goal, known, said):
    assert said in told(tune_sample.trial(1, "loader.cache", CACHED, **known), GOALS[goal])
