from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.cases import memory_of, step_of
from tests.plan.test_search import wish

from paceline.core.errors import UsageError
from paceline.plan.adapters import low_rank
from paceline.plan.constants import fitted
from paceline.plan.convention import model_flops
from paceline.plan.convnets import convnet
from paceline.plan.named import named
from paceline.plan.search import search
from paceline.plan.setting import Adapted, parse_layout

LLAMA = named("Llama-3-8B")  # width 4,096, 8 heads of keys and values of 32, feed-forward 14,336, 32 blocks


@pytest.mark.parametrize(
    ("where", "weights"),
    [
        ("qv", 32 * 16 * (4096 + 4096 + 4096 + 1024)),
        ("all-linear", 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))),
    ],
)
def test_weights_of_low_rank_matrices_are_inputs_and_outputs_times_the_rank(where, weights):
    assert low_rank(LLAMA, 16, where, 16).trainable == weights


def best(adapted, spec="1xA100-80GB-SXM", **more):
    question = wish(spec=spec, batch=16, adapted=adapted, **more)
    question = replace(question, model=replace(LLAMA, seq=2048))
    return search(question, fitted()).plans


def test_frozen_weights_have_no_gradients_and_no_states():
    plan = best(low_rank(LLAMA, 16, "qv", 16))[0]
    parts = plan.memory_parts
    assert not best(Adapted())  # all weights with their states do not fit one card
    assert parts["weights"] == pytest.approx(2 * LLAMA.params, rel=0.02)
    assert parts["optimizer"] == pytest.approx(8 * low_rank(LLAMA, 16, "qv", 16).trainable)
    assert parts["gradients"] < 0.01 * parts["weights"]
    assert plan.memory_bytes == pytest.approx(memory_of(plan.case).total[0])
    assert plan.step_s == pytest.approx(step_of(plan.case).total[0])


def test_fewer_bits_take_less_and_adapters_everywhere_keep_more():
    def held(where, bits):
        return best(low_rank(LLAMA, 16, where, bits), micro_batch=1, ways=("none",))[0].memory_parts

    assert held("qv", 4)["weights"] < 0.4 * held("qv", 16)["weights"]
    assert held("all-linear", 16)["activations"] > 1.5 * held("qv", 16)["activations"]


def test_a_step_wants_no_gradients_of_frozen_weights():
    case = best(low_rank(LLAMA, 16, "qv", 16))[0].case
    full = replace(case, training=replace(case.training, adapters="", trainable=0))
    assert 0.66 < model_flops(case) / model_flops(full) < 0.7  # attention has no weights
    assert 0.6 < step_of(case).total[0] / step_of(full).total[0] < 0.8


def test_matrices_of_a_higher_rank_are_work_too():
    low, high = (best(low_rank(LLAMA, rank, "all-linear", 16), micro_batch=1, ways=("none",))[0] for rank in (8, 256))
    more = 248 * 32 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert model_flops(high.case) - model_flops(low.case) == pytest.approx(6 * more * 2048 * 16)
    assert 1.05 < high.step_parts["matrix"] / low.step_parts["matrix"] < 1.2


def test_frozen_experts_have_no_gradients_to_reduce():
    question = wish(spec="16xH100-SXM", batch=64, layout=parse_layout("dp=16,ep=8"), precision="bf16")
    mixtral = named("Mixtral-8x7B")
    question = replace(question, model=mixtral, adapted=low_rank(mixtral, 16, "qv", 16))
    parts = search(question, fitted()).nearest.step_parts
    assert parts["reduce"] < 0.05 * parts["matrix"]


def test_embeddings_frozen_in_32_bits_take_32():
    def held(bits):
        return best(low_rank(LLAMA, 8, "qv", bits), micro_batch=1)[0].memory_parts["weights"]

    assert held(32) == pytest.approx(2 * held(16), rel=0.01)


def test_few_bits_are_not_planned_on_axes_that_split_products():
    small = low_rank(LLAMA, 16, "qv", 4)
    for plan in best(small, "8xA100-80GB-SXM"):
        layout = plan.case.layout
        assert (layout.tp, layout.pp, layout.cp) == (1, 1, 1)
    with pytest.raises(UsageError, match="layout tp=8: frozen weights with fewer than 16 bits"):
        best(small, "8xA100-80GB-SXM", layout=parse_layout("tp=8"))


@pytest.mark.parametrize(
    ("model", "where", "says"),
    [
        (convnet("resnet-50"), "qv", "--lora needs a transformer"),
        (named("Mixtral-8x7B"), "all-linear", "adapters on the experts"),
    ],
)
def test_what_is_not_planned_is_refused(model, where, says):
    with pytest.raises(UsageError, match=says):
        low_rank(model, 8, where, 16)


def test_a_rank_above_the_narrowest_product_is_refused():
    with pytest.raises(UsageError, match="--lora 2000 is too high: a matrix of Llama-3-8B is only 1024 wide"):
        low_rank(LLAMA, 2000, "qv", 16)
