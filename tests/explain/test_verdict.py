from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from paceline.explain.model import Finding, Gain, Remedy
from paceline.explain.verdict import ordered, verdict_of, worth


def finding(code: str, low: float = 0.0, high: float = 0.0, **changes) -> Finding:
    values = {
        "name": code.lower(),
        "severity": "warning",
        "confidence": "high",
        "time_share": None,
        "gain": Gain(low=low, high=high) if high else None,
        "ranks": [0],
        "evidence": [],
        "remedies": [],
        "summary": f"about {code}",
    }
    return Finding(code=code, **(values | changes))


NAN = finding("CONV001", severity="critical")
DIVERGING = finding("CONV002", severity="critical")
SLOW = finding("DATA002", 1.3, 2.0)
SLOWER = finding("DATA003", 2.0, 4.0)
GROWING = finding("MEM002", severity="critical")
SMALL = finding("RUN001", 1.01, 1.05)
HEALTHY = finding("COMP001", severity="info")


def codes(*findings: Finding) -> list[str]:
    return [f.code for f in ordered(findings)]


def test_results_before_speed_before_risks_before_health():
    everything = [NAN, DIVERGING, SLOWER, SLOW, GROWING, HEALTHY, SMALL]
    wanted = [f.code for f in everything]
    draw = random.Random(1)
    for _ in range(20):
        assert codes(*draw.sample(everything, len(everything))) == wanted


def test_a_wrong_result_is_the_verdict_whatever_speed_could_be_gained():
    verdict, text = verdict_of(ordered([finding("DATA003", 50, 90), NAN]))
    assert (verdict, text) == ("conv001", "about CONV001")


@pytest.mark.parametrize("high, verdict", [(1.04, "balanced"), (1.2, "run001")])
def test_below_five_percent_nothing_is_the_verdict(high, verdict):
    assert verdict_of(ordered([finding("RUN001", 1.0, high)]))[0] == verdict


def test_health_is_the_verdict_where_nothing_gains_five_percent():
    assert verdict_of(ordered([SMALL, HEALTHY]))[0] == "comp001"


def test_a_risk_is_said_before_health():
    assert verdict_of(ordered([HEALTHY, GROWING]))[0] == "mem002"


def test_nothing_found_is_balanced():
    assert verdict_of([]) == ("balanced", verdict_of([SMALL])[1])


def test_worth_is_the_middle_discounted():
    assert worth(finding("DATA002", 2.0, 8.0)) == pytest.approx(4.0)
    assert worth(finding("DATA002", 2.0, 8.0, confidence="medium")) == pytest.approx(1 + 3 * 0.85)
    assert worth(finding("DATA002", 2.0, 8.0, confidence="low")) == pytest.approx(2.5)
    assert worth(GROWING) == 1.0


@pytest.mark.parametrize("general", ["HOST003", "RUN004"])
def test_the_general_gives_way_to_what_says_why(general):
    assert codes(finding(general, 1.5, 2.0), finding("DATA002", 1.45, 1.95)) == ["DATA002", general]


def test_the_more_certain_of_two_alike_goes_first():
    one, other = finding("RUN001", 1.5, 2.0, confidence="medium"), finding("RUN002", 1.5, 2.0)
    assert codes(one, other) == ["RUN002", "RUN001"]


def test_order_does_not_depend_on_the_order_before():
    alike = [finding(code, low, 2.0) for code, low in (("RUN001", 1.1), ("RUN002", 1.2), ("RUN006", 1.3))]
    assert {tuple(codes(*some)) for some in itertools.permutations(alike)} == {("RUN006", "RUN002", "RUN001")}


def remedy(low: float, high: float) -> Remedy:
    return Remedy(id="loader.workers", safety="exact", change="more workers", gain=Gain(low=low, high=high))


def test_the_gain_of_a_finding_is_that_of_its_best_remedy_which_is_shown_first():
    (one,) = ordered([finding("DATA001", 1.2, 2.4, remedies=[remedy(1.1, 1.6), remedy(1.2, 2.4)])])
    assert one.gain == one.remedies[0].gain == Gain(low=1.2, high=2.4)
    assert len(one.remedies) == 2


def test_what_is_modelled_goes_before_what_is_assumed():
    guess = replace(remedy(1.0, 9.0), gain=Gain(low=1.0, high=9.0, basis="assumed"))
    (one,) = ordered([finding("DATA001", 1.2, 2.4, remedies=[guess, remedy(1.2, 2.4)])])
    assert one.gain == Gain(low=1.2, high=2.4)


def test_a_remedy_of_a_straggler_gains_no_more_than_its_finding():
    late = finding("COMM002", 1.3, 1.5)
    found = {f.code: f for f in ordered([late, finding("DATA001", 4.0, 6.0, remedies=[remedy(4.0, 6.0)])])}
    assert found["DATA001"].gain == found["DATA001"].remedies[0].gain == Gain(low=1.3, high=1.5)
