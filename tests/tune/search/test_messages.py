"""What is said of a trial while the search goes on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.report.tune import tune_sample

from paceline.tune.candidates import Candidate
from paceline.tune.comparison.model import GOALS
from paceline.tune.search.budget import Budget
from paceline.tune.search.decisions import UndecidedChange
from paceline.tune.search.messages import (
    budget_too_small_message,
    no_win_reason,
    nothing_left_message,
    preparation_too_long_message,
    start_message,
    trial_message,
)
from paceline.tune.search.result import OUTCOMES
from paceline.tune.trials.process import last_error

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
            "3.40x (95% CI 2.00–5.00, 8 pairs of blocks), no gain",
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
    assert said in trial_message(tune_sample.trial(1, "loader.cache", CACHED, **known), GOALS[goal])


def test_each_outcome_has_one_word_of_its_own():
    assert len(set(OUTCOMES.values())) == len(OUTCOMES)
    assert OUTCOMES["undecided"] != OUTCOMES["no-win"]


def test_a_change_that_is_measured_again_says_why():
    gained = tune_sample.factor(1.3, 0.8, 2.1, 12)
    one = Candidate(remedy="loader.cache", recipe=CACHED, safety="exact", predicted=None, why="a test")
    assert start_message(one, None) == "trying loader.cache=true"
    again = start_message(one, UndecidedChange(candidate=one, base={}, gained=gained))
    assert again.startswith("measuring loader.cache=true for longer, because it is undecided: 1.30x")


@pytest.mark.parametrize("budget_s", [1.0, 5.0, 15.0])
def test_a_budget_without_time_for_a_trial_is_said_with_what_is_needed(budget_s):
    budget = Budget(total_s=budget_s)
    said = budget_too_small_message(budget, 12.0, budget_s - 12.0 - budget.confirmation_s, 4.0)
    assert said == (
        f"the time budget of {budget_s:.0f} s is too small for this program: measuring it without changes took 12 s, "
        f"and a trial takes at least {budget.least_trial_s(4.0):.0f} s more"
    )


def test_a_budget_with_time_for_a_trial_is_not_too_small():
    assert budget_too_small_message(Budget(total_s=120.0), 12.0, 90.0, 4.0) is None


TRACEBACK = """
step 250 loss 1.2
Traceback (most recent call last):
  File "/home/me/crash.py", line 52, in <module>
    main()
  File "/home/me/crash.py", line 47, in main
    loss = nn.functional.cross_entropy(model(x), y)
  File "/usr/lib/python3.11/site-packages/torch/nn/functional.py", line 3458, in cross_entropy
    return torch._C._nn.cross_entropy_loss(
IndexError: Target 7 is out of bounds.
"""


@pytest.mark.parametrize(
    "output, said",
    [
        (TRACEBACK, ": IndexError: Target 7 is out of bounds. (crash.py:47)"),
        ("ValueError: bad value\n", ": ValueError: bad value"),
        ("the last line\n", ": the last line"),
        ("", ""),
    ],
)
def test_an_error_is_told_with_the_line_of_the_program(tmp_path, output, said):
    (tmp_path / "output.txt").write_text(output)
    assert last_error(tmp_path) == said


def test_an_undecided_gain_says_how_many_pairs_it_needs():
    """An interval above 1.00x is no proof where few pairs were seen."""
    said = no_win_reason("undecided", GOALS["time"], tune_sample.factor(2.18, 1.43, 3.61, 9), 16)
    assert said == "too few measurements in the time of this trial: a gain that may be below 1.5x needs 16 pairs"
    assert "pairs" not in no_win_reason("undecided", GOALS["time"], tune_sample.factor(1.2, 0.9, 1.6, 20), 16)


def test_what_is_not_allowed_is_not_said_to_gain_nothing():
    skipped = tune_sample.trial(1, "precision.autocast", {}, safety="numeric", status="skipped", speedup=None)
    said = nothing_left_message([skipped], ("exact", "resampled"), GOALS["time"])
    assert said == "no untried change of the allowed safety classes could give a speed-up of 2% or more"
    assert (
        nothing_left_message([], ("exact",), GOALS["time"]) == "no untried change could give a speed-up of 2% or more"
    )


def test_changes_without_time_are_not_said_to_gain_nothing():
    """A program whose only allowed change takes long to compile."""
    late = tune_sample.trial(1, "compute.compile", {}, safety="numeric", status="skipped", speedup=None)
    late = replace(late, reason=preparation_too_long_message(43.0))
    said = nothing_left_message([late], ("exact", "resampled", "numeric"), GOALS["time"])
    assert said == "the rest of the time budget is too short for 1 untried change"
