"""Changes that are not proven alone, and what they make together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.report.tune import tune_sample

from paceline.core.statistics import Interval
from paceline.tune.candidates import Candidate
from paceline.tune.comparison.paired_blocks import ComparisonRound
from paceline.tune.comparison.statistics import multiply_intervals
from paceline.tune.search.decisions import (
    UndecidedChange,
    best_unfinished,
    check_most_promising,
    combine_undecided,
    is_better_value,
    most_promising,
)


def undecided(remedy, recipe, value, *, base=None, half=0.08, safety="numeric", rounds=(), **more):
    low, high = value * math.exp(-half), value * math.exp(half)
    candidate = Candidate(remedy=remedy, recipe=recipe, safety=safety, predicted=None, why="", **more)
    gained = Interval(value=value, low=low, high=high, count=20)
    return UndecidedChange(candidate=candidate, base=base or {}, gained=gained, rounds=rounds)


BF16 = undecided("precision.autocast", {"precision": {"autocast": "bf16"}}, 1.07)
FUSED = undecided("optimizer.fused", {"optimizer": {"fused": True}}, 1.08)
FOREACH = undecided("optimizer.foreach", {"optimizer": {"foreach": True}}, 1.03)


def test_two_small_gains_are_one_change():
    made = combine_undecided([BF16, FUSED], {}, 1.02)
    assert made.recipe == {"optimizer": {"fused": True}, "precision": {"autocast": "bf16"}}
    assert made.remedy == "optimizer.fused + precision.autocast"


def test_independent_gains_are_expected_to_multiply():
    predicted = combine_undecided([BF16, FUSED], {}, 1.02).predicted
    assert math.sqrt(predicted.low * predicted.high) == pytest.approx(1.07 * 1.08)
    assert math.log(predicted.high / predicted.low) / 2 == pytest.approx(0.08 * math.sqrt(2))


def test_no_loss_is_expected():
    small = undecided("loader.workers", {"loader": {"num_workers": 4}}, 1.02, safety="exact")
    assert combine_undecided([small, FOREACH], {}, 1.02).predicted.low == 1.0


def test_a_gain_of_which_the_interval_is_open_predicts_nothing():
    open_ended = UndecidedChange(
        candidate=FUSED.candidate, base={}, gained=Interval(value=1.1, low=0.0, high=math.inf, count=1)
    )
    assert combine_undecided([BF16, open_ended], {}, 1.02).predicted is None


@pytest.mark.parametrize(
    "tried", [[], [BF16], [FUSED, FOREACH], [BF16, undecided("b", {"loader": {"threads": 2}}, 1.0)]]
)
def test_one_that_gained_alone_makes_nothing(tried):
    assert combine_undecided(tried, {}, 1.02) is None


def test_too_little_together_is_nothing():
    few = undecided("loader.prefetch", {"loader": {"prefetch_factor": 4}}, 1.01)
    assert combine_undecided([few, undecided("a", {"compute": {"num_threads": 2}}, 1.01)], {}, 1.05) is None


def test_of_two_values_of_a_setting_the_better_is_taken():
    four, eight = (undecided("loader.prefetch", {"loader": {"prefetch_factor": n}}, 1 + n / 100) for n in (4, 8))
    assert combine_undecided([four, BF16, eight], {}, 1.02).recipe["loader"] == {"prefetch_factor": 8}


def test_of_fused_and_foreach_one_is_taken():
    assert combine_undecided([FOREACH, FUSED, BF16], {}, 1.02).recipe["optimizer"] == {"fused": True}


def test_what_was_changed_since_is_left_out():
    threads = undecided("loader.threads", {"loader": {"num_workers": 0, "threads": 2}}, 1.2, safety="exact")
    assert "loader" in combine_undecided([threads, BF16, FUSED], {"compute": {"num_threads": 1}}, 1.02).recipe
    assert "loader" not in combine_undecided([threads, BF16, FUSED], {"loader": {"num_workers": 8}}, 1.02).recipe


def test_it_is_as_bold_as_the_boldest_and_warms_up_as_long_as_the_longest():
    cache = undecided("loader.cache", {"loader": {"cache": True}}, 1.1, safety="exact", warmup_steps=40)
    made = combine_undecided([cache, FUSED], {}, 1.02)
    assert (made.safety, made.warmup_steps) == ("numeric", 40)
    assert combine_undecided([BF16, FUSED], {}, 1.02).warmup_steps is None


def test_the_race_that_looks_best_goes_on_where_what_it_ran_against_is_still_what_is_kept():
    assert best_unfinished([BF16, FUSED, FOREACH], {}, 1.02) is FUSED
    assert best_unfinished([BF16, FUSED], {"compute": {"num_threads": 1}}, 1.02) is None
    assert best_unfinished([BF16], {}, 1.08) is None
    over = ComparisonRound(warmup=[], pairs=[], over=False)
    assert (
        best_unfinished([undecided("a", {"compute": {"num_threads": 1}}, 1.3, rounds=[over] * 9), BF16], {}, 1.02)
        is BF16
    )


def interval(value, half, count=20):
    return Interval(value=value, low=value * math.exp(-half), high=value * math.exp(half), count=count)


@pytest.mark.parametrize(
    "value, half, kept, taken",
    [
        (1.07, 0.15, 2.0, True),  # more likely better than not
        (1.03, 0.15, 2.0, False),  # a toss-up
        (1.01, 0.01, 2.0, False),  # not worth having
        (1.07, 0.15, 1.05, False),  # might undo what is proven
    ],
)
def test_a_value_that_measured_better_is_taken_where_the_setting_stays_proven(value, half, kept, taken):
    assert is_better_value(interval(value, half), interval(kept, 0.02), 1.02) == taken


def test_what_changes_gained_in_turn_is_their_product():
    found = multiply_intervals([interval(2.0, 0.03, count=12), interval(1.5, 0.04, count=30)])
    assert found.value == pytest.approx(3.0)
    assert math.log(found.high / found.low) / 2 == pytest.approx(0.05)
    assert found.count == 12
    assert multiply_intervals([interval(2.0, 0.03)]).low == pytest.approx(2.0 * math.exp(-0.03))


@pytest.mark.parametrize("factors", [[], [None], [interval(2.0, 0.03), None], [interval(2.0, math.inf)]])
def test_a_product_of_what_is_not_known_is_not_known(factors):
    assert multiply_intervals(factors) is None


def test_what_looked_clearly_faster_than_the_unchanged_program_comes_the_fastest_first():
    workers = undecided("loader.workers", {"loader": {"num_workers": 3}}, 8.2, half=3.0)
    cache = undecided("loader.cache", {"loader": {"cache": True}}, 2.8, half=2.0)
    later = undecided("loader.threads", {"loader": {"threads": 2}}, 9.0, base={"loader": {"cache": True}})
    assert most_promising([FUSED, cache, later, workers]) == [workers, cache]


def test_what_is_handed_over_trains_the_same_or_is_told_as_not_safe():
    workers = undecided("loader.workers", {"loader": {"num_workers": 3}}, 8.2)
    cache = undecided("loader.cache", {"loader": {"cache": True}}, 2.8)
    tried = [
        tune_sample.trial(number, one.candidate.remedy, one.candidate.recipe, speedup=one.gained, status="undecided")
        for number, one in enumerate((workers, cache))
    ]

    def proven(candidate, trial, begun):
        return replace(trial, status="unsafe" if candidate is workers.candidate else "kept")

    lines = []
    trials, found = check_most_promising(tried, [workers, cache], proven, lines.append)
    assert (found.remedy, found.status) == ("loader.cache", "undecided")
    assert [trial.status for trial in trials] == ["unsafe", "undecided"]
    assert len(lines) == 2
