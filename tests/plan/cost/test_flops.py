from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.cases import case

from paceline.plan.cost.flops import flops_of
from paceline.plan.cost.plan import Plan
from paceline.report.plan.words import utilisation


def test_conventions_differ_by_attention_and_by_what_is_computed_again():
    one = case(seq=8192)
    found = flops_of(one, 2.0)
    tokens, model = 8192 * 8, one.model
    products = 6 * (model.block_params + model.vocab * model.hidden) * tokens
    scores = 12 * model.layers * 8192 * model.heads * model.head_dim * tokens
    assert found.full == found.hardware == pytest.approx(products + scores)
    assert found.causal == pytest.approx(products + scores / 2)
    assert found.peak == pytest.approx(8 * 989e12, rel=0.001)
    assert found.mfu_full == pytest.approx(found.full / 2.0 / found.peak)
    again = flops_of(replace(one, training=replace(one.training, recompute="full")), 2.0)
    assert again.full == found.full
    assert again.hardware == pytest.approx(found.full + (products + scores) / 3, rel=0.02)  # blocks once more


def test_a_card_without_a_known_peak_has_no_share():
    one = case()
    card = replace(one.cluster.gpu, peak_flops={})
    unknown = replace(one, cluster=replace(one.cluster, gpu=card))
    assert flops_of(unknown, 2.0).mfu_full is None
    plan = Plan(case=unknown, step_s=2.0, step_parts={}, memory_bytes=1.0, memory_parts={}, fits=1.0)
    assert "n/a" in utilisation(plan)
