from __future__ import annotations

import pytest
from tests.plan.search.test_search import TODAY, wish

from paceline.plan.cost.case import parse_layout
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.machines import parse_machines
from paceline.plan.search.advice import Target, advise
from paceline.report.plan.terminal import lines_of


def test_scaling_names_the_plan_asked_for_as_the_whole():
    advice = advise(wish(), parse_machines("16xH100-SXM", 8, None), Target(today=TODAY), fitted())
    same = [each for each in advice.scaling if each.plan.case.cluster.count == 16]
    assert same[0].efficiency == pytest.approx(1.0)
    assert advice.cost is None


def test_a_narrower_format_is_told_beside_the_plan():
    advice = advise(
        wish(layout=parse_layout("shard=16")), parse_machines("16xH100-SXM", 8, None), Target(today=TODAY), fitted()
    )
    (fp8,) = advice.formats
    assert (advice.best.case.training.precision, fp8.case.training.precision) == ("bf16", "fp8")
    assert fp8.step_s < advice.best.step_s
    assert "`paceline explain precision.fp8` describes how to use this data type" in list(lines_of(advice))
    on_ampere = wish(spec="16xA100-80GB-SXM", layout=parse_layout("shard=16"))
    assert advise(on_ampere, parse_machines("16xA100-80GB-SXM", 8, None), Target(today=TODAY), fitted()).formats == ()
