from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.cases import PUBLISHED, case, memory_of, step_of

from paceline.plan.cost.constants import fitted, regime_of, spread_of
from paceline.plan.models.counted_step import CountedStep
from paceline.plan.validate.accuracy import validate
from paceline.plan.validate.published_rows import read_rows

COUNTED = CountedStep(
    forward_kernels=50,
    backward_kernels=90,
    forward_moved=210 * 4096,
    backward_moved=460 * 4096,
    weight_moved=12,
    logit_moved=44,
    optimizer_moved=80,
    saved=57 * 4096,
    weight_saved=2,
    logit_peak=12,
    optimizer_peak=4,
)
FP32 = {"weight_bytes": 4.0, "gradient_bytes": 4.0, "optimizer_bytes": 8.0}
ALONE = {"dp": 1, "count": 1, "gpu": "H200-SXM", "sharded": "nothing", "kernels": "eager", "seq": 1024, **FP32}


def test_counted_bytes_and_kernels_take_the_place_of_the_formulas():
    base = step_of(case(**ALONE, counted=COUNTED))
    k, one = fitted().constants, case(**ALONE)
    tokens, bandwidth, layers = 1024, one.cluster.gpu.memory_bytes_per_s, one.model.layers
    each = (210 + 460) * 4096 * tokens * layers + 12 * one.model.block_params
    assert base.bandwidth[0] == pytest.approx(k.passes_counted * each / bandwidth)
    assert base.optimizer[0] == pytest.approx(80 * one.model.params / bandwidth, rel=0.01)
    more = replace(COUNTED, forward_kernels=500.0, backward_kernels=900.0)
    assert step_of(case(**ALONE, counted=more)).total[0] == pytest.approx(
        layers * 1400 * k.kernel_eager_s, rel=0.35
    )  # the host alone
    assert step_of(case(**ALONE, counted=more)).launch[0] > 5 * base.launch[0]


def test_at_the_peak_of_the_loss_one_micro_batch_has_no_gradients_yet():
    large = memory_of(case(**ALONE, micro_batch=256.0, counted=COUNTED))
    params, tokens = case(**ALONE).model.params, 256 * 1024
    assert large.gradients[0] == 0.0
    saved = 57 * 4096 * tokens * case(**ALONE).model.layers + 2 * params
    assert large.activations[0] == pytest.approx(saved, rel=0.01)
    assert large.logits[0] == pytest.approx(12 * tokens * case(**ALONE).model.vocab)
    several = memory_of(case(**ALONE, micro_batch=256.0, micro_steps=2, counted=COUNTED))
    assert several.gradients[0] == pytest.approx(4 * params, rel=0.01)


def test_with_few_tokens_the_optimizer_step_is_the_peak():
    found = memory_of(case(**ALONE, counted=COUNTED))
    params = case(**ALONE).model.params
    assert (found.activations[0], found.logits[0]) == (0.0, 0.0)
    assert found.gradients[0] == pytest.approx(4 * params, rel=0.01)
    assert found.optimizer[0] == pytest.approx((8 + 4) * params, rel=0.01)


def test_replicas_keep_buffers_for_their_gradients():
    two = {**ALONE, "dp": 2, "count": 2}
    found = memory_of(case(**two, micro_batch=256.0, counted=COUNTED))
    assert found.gradients[0] == pytest.approx(4 * case(**two).model.params, rel=0.01)


@pytest.mark.parametrize("how", [{"kernels": "fused"}, {"kernels": "eager"}, {"precision": "fp8"}, {"seq": 32768}])
def test_one_gpu_without_measurements_has_the_spread_of_what_was_never_measured(how):
    """The spread of runs on hundreds of GPUs does not apply, because their errors have other causes."""
    alone = case(**{**ALONE, **how})
    assert regime_of(alone) not in fitted().time_spread
    assert spread_of(alone, fitted()) == 0.5


def test_counted_programs_on_one_gpu_have_the_spread_that_was_measured():
    assert (
        spread_of(case(**ALONE, counted=COUNTED), fitted()) == fitted().time_spread["one GPU, dense, counted kernels"]
    )
    eight = {**ALONE, "dp": 8, "count": 8}
    assert spread_of(case(**eight, counted=COUNTED), fitted()) == 0.5
    assert spread_of(case(**eight), fitted()) == 0.5


def test_our_own_measurements_are_predicted():
    report = validate(read_rows(PUBLISHED), fitted())
    ours = report.sources["Paceline, Hugging Face Llama"]
    assert (ours.timed, ours.memory_rows, ours.order) == (4, 4, 1.0)
    assert ours.time_p90 is not None and ours.time_p90 < 0.08
    assert ours.memory_p90 is not None and ours.memory_p90 < 0.03
