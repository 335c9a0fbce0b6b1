from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.plan.cases import case, step_of

from paceline.plan.cost.columns import columns_of
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.flops import model_flops
from paceline.plan.cost.machines import ceiling
from paceline.plan.cost.step_time import gather_s, rate

K = fitted().constants


def total(one):
    return step_of(one).total[0]


def test_nothing_is_faster_than_the_measured_ceiling():
    cases = [
        case(name, gpu, seq=seq)
        for name in ("Llama-3-8B", "Llama-3-70B")
        for gpu in ("H100-SXM", "A100-80GB-SXM")
        for seq in (2048, 32768)
    ]
    for one, seconds in zip(cases, step_of(*cases).total):
        causal = (
            model_flops(one)
            - 6 * one.model.layers * one.model.seq**2 * one.model.heads * one.model.head_dim * one.global_batch
        )
        assert seconds > causal / 8 / ceiling(one.cluster.gpu, "bf16")


def test_parts_add_up_and_none_is_negative():
    found = step_of(case(count=64, tp=4, pp=4, dp=4, micro_steps=16, sharded="optimizer"))
    parts = [value for name, value in vars(found).items()]
    assert sum(parts)[0] == pytest.approx(found.total[0])
    assert min(part[0] for part in parts) >= 0


def test_the_bubble_is_that_of_the_schedule():
    """(p - 1) / (v·m) of the steady time (Narayanan et al. 2021)."""
    common = {"count": 64, "tp": 8, "pp": 8, "micro_steps": 32, "sharded": "nothing"}
    plain, chunked = step_of(case("Llama-3-70B", **common), case("Llama-3-70B", **common, chunks=5)).bubble
    found = step_of(case("Llama-3-70B", **common))
    steady = sum(getattr(found, name)[0] for name in ("matrix", "attention", "bandwidth", "launch", "tensor"))
    assert found.bubble[0] / steady == pytest.approx(7 / 32, rel=0.05)
    assert chunked < plain / 3


def test_recomputation_costs_a_forward_pass():
    none, full = (total(case(micro_batch=2.0, recompute=way)) for way in ("none", "full"))
    assert 1.2 < full / none < 1.4


def test_more_of_everything_takes_longer():
    base = total(case())
    assert total(case(micro_batch=2.0)) > 1.5 * base
    assert total(case("Llama-3-70B")) > 6 * base
    assert total(case(gpu="A100-80GB-SXM")) > 1.5 * base
    assert total(case(precision="fp8")) < base


def test_a_group_within_a_node_uses_the_fast_links_and_one_across_shares_the_adapters():
    c = columns_of([case(count=64)])
    eight = np.array([8.0])
    within, across = rate(c, K, eight, eight / 8)[0], rate(c, K, eight, eight)[0]
    assert within > 4 * across
    whole = rate(c, K, 8 * eight, eight / 8)[0]
    assert across < whole <= within
    assert gather_s(c, K, np.array([1e9]), eight / 8, eight / 8)[0] == 0


def test_a_slow_network_is_felt_by_sharded_weights():
    fast = case("Llama-3-70B", count=64)
    slow = replace(fast, cluster=replace(fast.cluster, network_bytes_per_s=12.5e9))
    assert total(slow) > 3 * total(fast)


def test_experts_cost_what_a_token_reaches():
    sparse = case("Qwen3_30B_a3B", gpu="GB200", count=8, seq=4096, dp=8, ep=8, sharded="optimizer", micro_batch=4.0)
    dense = case("Qwen3-32B", gpu="GB200", count=8, seq=4096, dp=8, sharded="optimizer", micro_batch=4.0)
    assert total(sparse) < total(dense) / 2


def test_a_thousand_layouts_are_one_call():
    cases = [
        case(count=64, tp=tp, pp=pp, dp=64 // tp // pp, micro_steps=8) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8)
    ]
    together = step_of(*cases).total
    assert together == pytest.approx([total(one) for one in cases])
