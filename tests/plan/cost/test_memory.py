from __future__ import annotations

import pytest
from tests.plan.cases import case, memory_of

from paceline.plan.cost.constants import probability

GIB = 2**30


def test_states_are_counted_as_zero_does():
    """2 + 4 + 12 bytes of a weight; the optimizer's over replicas, or all of them."""
    params = case().model.params
    whole = memory_of(case(dp=8, sharded="nothing"))
    assert whole.weights[0] + whole.gradients[0] + whole.optimizer[0] == pytest.approx(18 * params)
    optimizer = memory_of(case(dp=8, sharded="optimizer"))
    assert optimizer.optimizer[0] == pytest.approx(12 * params / 8)
    assert optimizer.weights[0] == pytest.approx(2 * params)
    sharded = memory_of(case())
    assert sharded.weights[0] + sharded.gradients[0] + sharded.optimizer[0] == pytest.approx(18 * params / 8)


def test_activations_of_a_plain_block_are_korthikantis():
    """34h + 5as bytes a token, all of it over tp with sequence parallelism (arXiv:2205.05198, eq. 2 to 4)."""
    model = case("GPT3-175B", seq=2048).model
    common = {"gpu": "A100-80GB-SXM", "count": 64, "seq": 2048, "attention": "plain", "sharded": "nothing"}
    layout = {"tp": 8, "pp": 8, "micro_steps": 64}
    plain = memory_of(case("GPT3-175B", **common, **layout))
    selective = memory_of(case("GPT3-175B", **common, **layout, recompute="attention"))
    per_block = 2048 * model.hidden * 34 / 8
    scores = 5 * model.heads * 2048 * 2048 / 8
    assert selective.activations[0] == pytest.approx(96 * per_block, rel=0.06)
    assert plain.activations[0] == pytest.approx(96 * (per_block + scores), rel=0.06)


def test_recomputation_frees_memory_in_this_order():
    ways = ("none", "cheap", "operators", "full")
    found = memory_of(*[case(recompute=way) for way in ways]).activations
    assert list(found) == sorted(found, reverse=True)
    assert found[3] < found[0] / 5


def test_stages_hold_as_many_micro_batches_as_there_are_stages():
    few, many = memory_of(
        case(count=64, tp=8, pp=8, micro_steps=4, sharded="nothing"),
        case(count=64, tp=8, pp=8, micro_steps=64, sharded="nothing"),
    ).activations
    assert many == pytest.approx(2 * few)


def test_parts_add_up():
    found = memory_of(case())
    assert found.total[0] == pytest.approx(found.allocated[0] + found.fragmentation[0] + found.context[0])
    assert found.reserved[0] == pytest.approx(found.allocated[0] + found.fragmentation[0])


def test_four_bit_weights_and_adapters_take_little():
    frozen = {"adapters": "lora", "trainable": 4_000_000, "weight_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 4}
    whole, sixteen, four = (
        memory_of(case(count=1, seq=1024, sharded="nothing")).total[0],
        memory_of(case(count=1, seq=1024, sharded="nothing", **frozen)).total[0],
        memory_of(case(count=1, seq=1024, sharded="nothing", frozen_bits=4.5, **frozen)).total[0],
    )
    assert whole > 140 * GIB
    assert four < 17 * GIB < sixteen < 28 * GIB


def test_the_chance_of_fitting_is_a_half_at_the_limit():
    assert probability(80e9, 80e9, 0.1) == pytest.approx(0.5)
    assert probability(70e9, 80e9, 0.1) > 0.9
    assert probability(100e9, 80e9, 0.1) < 0.05
