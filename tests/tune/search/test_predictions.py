"""Predictions, corrected by what earlier trials achieved: what must hold of it, and how often the result is right."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.statistics import Interval
from paceline.explain.model import Gain
from paceline.tune.candidates import Candidate
from paceline.tune.search.predictions import (
    AGREEING,
    NEWEST,
    Machine,
    RecordedTrial,
    correct_predictions,
    corrected_gain,
    recorded_trial,
)
from paceline.tune.search.result import Trial

WORTH = 1.02
HERE = Machine(host="here", device="cpu", torch="2.13.0")
factors = st.floats(min_value=0.05, max_value=60)
gains = st.builds(lambda a, b: Gain(low=min(a, b), high=max(a, b)), factors, factors)


def outcome(findings: Gain | None, achieved: float, **changes: object) -> RecordedTrial:
    values: dict[str, object] = {
        "remedy": "loader.workers",
        "safety": "exact",
        "status": "kept",
        "predicted": findings,
        "machine": HERE,
        "date": "2026-11-21T12:00:00+00:00",
    }
    reached = Interval(value=achieved, low=achieved, high=achieved, count=12)
    return RecordedTrial(predicted_by_findings=findings, achieved=reached, **(values | changes))  # type: ignore[arg-type]


def candidate(predicted: Gain | None, remedy: str = "loader.workers") -> Candidate:
    return Candidate(remedy=remedy, recipe={remedy: {"x": 1}}, safety="exact", predicted=predicted, why="a test")


outcomes = st.lists(st.builds(outcome, st.none() | gains, factors), max_size=12)


def middle(gain: Gain) -> float:
    return math.sqrt(gain.low * gain.high)


def width(gain: Gain) -> float:
    return math.log(gain.high / gain.low)


@given(gains)
def test_without_history_a_prediction_stays_what_it_was(predicted):
    assert corrected_gain(predicted, [], WORTH) == predicted
    other = outcome(None, 3.0)
    unsafe = outcome(Gain(low=1.0, high=2.0), 9.0, status="unsafe")
    assert corrected_gain(predicted, [other, unsafe], WORTH) == predicted


@given(gains, outcomes)
def test_a_corrected_prediction_is_an_interval(predicted, seen):
    found = corrected_gain(predicted, seen, WORTH)
    assert 0 <= found.low <= found.high
    assert not math.isnan(found.low)


@given(gains, st.lists(gains, min_size=1, max_size=12))
def test_predictions_that_held_change_nothing(predicted, earlier):
    found = corrected_gain(predicted, [outcome(one, middle(one)) for one in earlier], WORTH)
    assert found.low == pytest.approx(predicted.low)
    assert found.high == pytest.approx(predicted.high)


@given(gains, st.lists(st.tuples(gains, st.floats(min_value=0.0, max_value=3.0)), max_size=12))
def test_it_is_never_surer_than_findings_of_the_same_size_would_be(predicted, earlier):
    """What a remedy brings of what is expected shrinks the interval with it; earlier trials alone do not."""
    seen = [outcome(one, middle(one) ** share) for one, share in earlier]
    found = corrected_gain(predicted, seen, 1e-9)
    if abs(math.log(middle(predicted))) > 1e-3:
        share = math.log(middle(found)) / math.log(middle(predicted))
        assert width(found) >= abs(share) * width(predicted) * (1 - 1e-6) - 1e-9


@given(st.floats(min_value=0.0, max_value=2.5), st.integers(min_value=1, max_value=15))
def test_one_share_is_learnt_from_above_or_below_and_never_overshot(share, number):
    """Every trial brought the same share of what was expected: the more there were, the closer it is followed."""
    predicted = Gain(low=2.0, high=4.0)
    expected = math.log(middle(predicted))
    gained = [
        math.log(middle(corrected_gain(predicted, [outcome(predicted, math.exp(share * expected))] * n, 1e-9)))
        / expected
        for n in (number, number + 1)
    ]
    assert all(min(1.0, share) - 1e-9 <= one <= max(1.0, share) + 1e-9 for one in gained)
    assert abs(gained[1] - share) <= abs(gained[0] - share) + 1e-9


def test_few_trials_move_it_little_and_many_move_it_far():
    predicted = Gain(low=2.0, high=4.0)
    nothing = outcome(predicted, 1.0)
    twice, thrice, often = (middle(corrected_gain(predicted, [nothing] * n, 1e-9)) for n in (2, 3, 20))
    assert twice == middle(predicted)
    assert 1.2 < thrice < 2.2
    assert 1.0 < often < 1.1


def test_half_of_a_large_gain_says_little_of_a_small_one():
    found = corrected_gain(Gain(low=1.05, high=1.15), [outcome(Gain(low=4.0, high=9.0), 2.5)] * 4, WORTH)
    assert found.low > 1.0
    assert 1.05 < found.high < 1.15


def test_scatter_widens_it():
    predicted = Gain(low=1.4, high=1.6)
    steady = [outcome(predicted, 1.5)] * 8
    wild = [outcome(predicted, value) for value in (0.8, 2.6, 1.1, 2.2) * 2]
    assert width(corrected_gain(predicted, wild, WORTH)) > 3 * width(corrected_gain(predicted, steady, WORTH))


def test_a_trial_that_measured_noise_moves_no_prediction():
    predicted = Gain(low=2.31, high=3.36)
    noise = replace(outcome(predicted, 1.1, status="no-win"), achieved=Interval(value=1.1, low=0.6, high=1.9, count=9))
    assert corrected_gain(predicted, [noise] * 20, WORTH) == predicted
    clear = replace(noise, achieved=Interval(value=1.1, low=1.05, high=1.15, count=30))
    assert corrected_gain(predicted, [clear] * 20, WORTH) != predicted


@given(gains, st.lists(st.builds(outcome, gains, factors), max_size=AGREEING - 1))
def test_few_trials_never_rule_a_remedy_out(predicted, seen):
    if predicted.high >= WORTH:
        assert corrected_gain(predicted, seen, WORTH).high >= WORTH


def test_a_remedy_that_slows_down_here_is_ruled_out_when_enough_trials_agree():
    predicted = Gain(low=1.22, high=1.49)
    slower = outcome(predicted, 0.12, status="no-win")
    assert corrected_gain(predicted, [slower] * (AGREEING - 1), WORTH).high == WORTH
    assert corrected_gain(predicted, [slower] * AGREEING, WORTH).high < WORTH


def test_a_remedy_that_brings_nothing_here_is_put_back_but_not_ruled_out():
    found = corrected_gain(
        Gain(low=1.4, high=2.0), [outcome(Gain(low=1.4, high=2.0), 1.0, status="no-win")] * 20, WORTH
    )
    assert middle(found) < 1.1
    assert found.high >= WORTH


def test_only_the_newest_trials_count():
    predicted = Gain(low=1.5, high=2.0)
    held = [outcome(predicted, middle(predicted))] * NEWEST
    assert corrected_gain(predicted, [outcome(predicted, 30.0)] * 10 + held, WORTH) == corrected_gain(
        predicted, held, WORTH
    )


def test_what_was_used_after_a_correction_is_not_corrected_once_more():
    """A trial counts against what the findings said: else corrections would pile up on each other."""
    findings = Gain(low=2.0, high=4.0)
    plain = outcome(findings, 1.7)
    after = outcome(findings, 1.7, predicted=Gain(low=1.2, high=2.3))
    assert corrected_gain(findings, [plain], WORTH) == corrected_gain(findings, [after], WORTH)


def test_trials_of_other_devices_and_remedies_say_nothing():
    predicted = Gain(low=2.0, high=4.0)
    elsewhere = outcome(predicted, 1.0, machine=Machine(host="here", device="NVIDIA H100", torch="2.13.0"))
    seen = [elsewhere, outcome(predicted, 1.0, remedy="loader.cache")]
    (found,) = correct_predictions([candidate(predicted)], seen, "cpu", WORTH)
    assert found.predicted == found.predicted_by_findings == predicted


def test_order_follows_what_is_expected_after_the_correction():
    promised, honest = candidate(Gain(low=2.0, high=4.0)), candidate(Gain(low=1.4, high=1.6), "loader.cache")
    unknown = candidate(None, "compute.compile")
    seen = [outcome(Gain(low=2.0, high=4.0), 1.0)] * 10
    found = correct_predictions([unknown, promised, honest], seen, "cpu", WORTH)
    assert [one.remedy for one in found] == ["loader.cache", "compute.compile", "loader.workers"]
    assert [one.predicted_by_findings for one in found] == [honest.predicted, None, promised.predicted]


@pytest.mark.parametrize("share", [0.4, 1.0, 1.5])
@pytest.mark.parametrize("noise", [0.15, 0.4])
def test_four_in_five_achieved_gains_lie_within(share, noise):
    """Remedies bring a share of what is expected, with errors that grow with it; the findings claim to know better."""
    draw = random.Random(7)
    within = late = 0
    for _ in range(60):
        seen: list[RecordedTrial] = []
        for number in range(25):
            centre, half = math.log(draw.uniform(1.1, 4.0)), 0.1
            findings = Gain(low=math.exp(centre - half), high=math.exp(centre + half))
            gained = math.exp(share * centre + draw.gauss(0, noise * math.hypot(centre, math.log(1.1))))
            found = corrected_gain(findings, seen, 1e-9)
            if number >= 8:
                late += 1
                within += found.low <= gained <= found.high
            seen.append(outcome(findings, gained))
    assert 0.73 <= within / late <= 0.97


@pytest.mark.parametrize("low, high, remembered", [(5.0, math.inf, 20.0), (5.0, 12.0, 12.0), (0.0, math.inf, None)])
def test_a_large_gain_is_remembered_also_where_its_interval_has_no_upper_limit(low, high, remembered):
    speedup = Interval(value=10.0, low=low, high=high, count=16)
    one = Trial(
        id="1",
        remedy="loader.threads",
        recipe={},
        safety="exact",
        predicted=None,
        speedup=speedup,
        status="kept",
        reason="gain proven",
    )
    found = recorded_trial(one, HERE, "2026-11-24T00:00:00+00:00")
    assert (found and found.achieved.high) == remembered
