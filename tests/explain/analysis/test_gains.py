"""Gains from measurements and models, bounds that are assumed, and the budget of one step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.statistics import Interval
from paceline.explain.analysis.gains import at_most, saving, share_of_events, share_of_samples
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.verdict import within_budget
from paceline.record.layout import PHASES

SHARES = {"data_wait": 0.5, "forward": 0.2, "backward": 0.2, "optimizer": 0.1}


def finding(code: str, low: float, high: float) -> Finding:
    gain = Gain(low=low, high=high)
    return Finding(
        code=code,
        name=code,
        severity="warning",
        confidence="high",
        time_share=None,
        gain=gain,
        ranks=[0],
        evidence=[Evidence(text="1", value=1.0, unit="s")],
        remedies=[Remedy(id="loader.workers", safety="exact", change="more", gain=gain)],
        summary=code,
    )


def saved(one: Finding) -> float:
    return 0.0 if one.gain is None else 1 - 1 / one.gain.high


CODES = ("DATA001", "DATA003", "DATA007", "RUN001", "RUN002", "RUN004", "RUN005", "RUN006", "COMP002", "COMP006",
         "COMP008", "HOST001", "HOST003", "COMM001", "COMM002", "XFER001")  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(CODES), st.floats(1.0, 90.0)), max_size=8),
    st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9),
)
@settings(deadline=None)
def test_gains_never_add_up_to_more_than_the_step(claims, parts):
    total = sum(parts) or 1.0
    shares = {name: part / total for name, part in zip(PHASES, parts, strict=True)}
    if not sum(parts):
        shares = dict.fromkeys(PHASES, 1 / 9)
    found = within_budget([finding(code, 1.0, high) for code, high in claims], shares)
    assert sum(saved(one) for one in found if one.code != "HOST003") <= 1 + 1e-6
    waiting = sum(saved(one) for one in found if one.code.startswith("DATA"))
    assert waiting <= shares["data_wait"] + 1e-6


def test_a_second_finding_about_the_same_time_has_what_the_first_left():
    first, second = within_budget([finding("DATA003", 1.5, 1.8), finding("DATA007", 1.2, 1.9)], SHARES)
    assert first.gain == Gain(low=1.5, high=1.8)
    assert second.gain.high == pytest.approx(1 / (1 - (0.5 - (1 - 1 / 1.8))))
    assert second.remedies[0].gain.high == second.gain.high
    assert "DATA003" in second.evidence[-1].text


def test_what_draws_on_all_phases_has_what_is_left():
    drift, data = within_budget([finding("RUN005", 2.0, 3.0), finding("DATA001", 1.5, 1.9)], SHARES)
    assert data.gain == Gain(low=1.5, high=1.9)
    assert drift.gain.high == pytest.approx(1 / (1 - 1 / 1.9))


def test_contention_multiplies_with_what_remedies_gain():
    """Less work also waits less for a core: neither bounds the other, whatever is claimed of the same time."""
    claims = [finding("HOST003", 4.0, 8.0), finding("DATA001", 1.5, 1.9), finding("COMP006", 1.1, 1.5)]
    host, data, compute = within_budget(claims, SHARES)
    assert (host.gain, host.evidence) == (Gain(low=4.0, high=8.0), claims[0].evidence)
    assert (data.gain.high, compute.gain.high) == (1.9, 1.5)


def test_findings_about_different_time_do_not_bound_each_other():
    found = within_budget([finding("DATA003", 1.5, 1.9), finding("COMP006", 1.1, 1.5)], SHARES)
    assert [one.gain.high for one in found] == [1.9, 1.5]


def test_a_gain_with_nothing_left_is_not_stated():
    found = within_budget([finding("DATA003", 2.0, 2.0), finding("DATA007", 1.2, 1.9)], SHARES)
    assert found[1].gain is None
    assert found[1].remedies[0].gain is None


def test_startup_is_no_part_of_a_step():
    assert within_budget([finding("DATA003", 2.0, 2.0), finding("RUN003", 1.2, 50.0)], SHARES)[1].gain.high == 50.0


@pytest.mark.parametrize("basis, confidence", [("measured", "high"), ("model", "medium"), ("assumed", "low")])
def test_an_assumed_gain_has_low_confidence(basis, confidence):
    assert Gain(low=1.0, high=2.0, basis=basis).confidence == confidence


def test_a_bound_is_assumed_and_may_be_nothing():
    gain = at_most(0.5)
    assert (gain.low, gain.high, gain.basis) == (1.0, 2.0, "assumed")
    assert at_most(7.0).high == pytest.approx(100.0)


def test_the_share_of_events_holds_the_truth_19_times_in_20():
    """Nine of ten checkpoints are left out: each takes 100 ms on average, of 10 s in all."""
    random = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        seconds = random.normal(0.1, 0.03, 20)
        share = share_of_events(seconds, 10.0, 0.9)
        held += share.low <= 0.18 <= share.high
    assert 0.92 <= held / 300 <= 0.99


def test_the_share_of_few_events_is_wide():
    share = share_of_events(np.array([0.5]), 10.0, 0.9)
    assert (share.low, share.high) == (0.0, pytest.approx(0.09))


def test_the_share_of_samples_holds_the_truth():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        count = int(random.binomial(40, 0.6))
        share = share_of_samples(0.5, count, 40, 0.9)
        held += share.low <= 0.27 <= share.high
    assert held / 300 >= 0.92


def test_saving_is_the_speed_up_of_what_is_left():
    gain = saving(Interval(value=0.4, low=0.2, high=0.5, count=9))
    assert (gain.low, gain.high, gain.basis) == (1.25, 2.0, "model")
