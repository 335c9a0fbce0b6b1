"""The FLOPs of a step and the utilization (MFU, HFU), by the conventions in use.

Model FLOPs are three times the FLOPs of all matrix products: once forward and twice backward (SC21 eq. 3 without the
recomputation). Frozen weights need no gradient, so with adapters the products with frozen weights count twice.
Attention and the low-rank adapters still count three times. Published figures count full attention, as Megatron and
MosaicML do (4·L·s·heads·d per token), or only its causal half. MFU is relative to the dense peak of the data sheet; HFU
also counts the recomputation in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.cost.case import Case
from paceline.plan.models.architecture import ConvNet, Transformer

_AGAIN = {"full": 1.0, "half": 0.5, "operators": 0.5}  # share of a block's products that is recomputed


@dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPs of one step on all GPUs, and utilization relative to `peak`.

    `peak` and the utilizations are None if the data sheet of the GPU is unknown.

    Attributes:
        full: Model FLOPs with full attention.
        causal: Model FLOPs with the causal half of attention; equal to `full` for other models.
        hardware: `full` plus recomputation.
        peak: Peak FLOP/s of all GPUs in the format of the matrix products.
    """

    full: float
    causal: float
    hardware: float
    peak: float | None
    mfu_full: float | None
    mfu_causal: float | None
    hfu_full: float | None


def flops_of(case: Case, step_s: float) -> Flops:
    """Return the FLOPs and the utilization of a step that takes `step_s` seconds."""
    full, causal, hardware = model_flops(case), model_flops(case, causal=True), model_flops(case) + _recomputed(case)
    each = case.cluster.gpu.peak_flops.get(case.training.precision)
    peak = None if each is None else each * case.cluster.count
    mfu_full, mfu_causal, hfu_full = (
        None if peak is None else count / step_s / peak for count in (full, causal, hardware)
    )
    return Flops(
        full=full,
        causal=causal,
        hardware=hardware,
        peak=peak,
        mfu_full=mfu_full,
        mfu_causal=mfu_causal,
        hfu_full=hfu_full,
    )


def model_flops(case: Case, *, causal: bool = False) -> float:
    """Return the model FLOPs of a step, with full attention or only with the causal half of attention."""
    model = case.model
    if isinstance(model, ConvNet):
        return 3 * model.flops * case.global_batch
    scores = _scores(model) * (0.5 if causal and model.causal else 1.0)
    products = 2 * (_active(model) + model.vocab * model.hidden * model.head_share)
    how = case.training
    beside = 2 * how.trainable if how.adapters.startswith("lora") else 0
    return ((2 if how.adapters else 3) * products + 3 * (scores + beside)) * model.seq * case.global_batch


def _active(model: Transformer) -> float:
    """Return the number of block weights that one token uses."""
    return model.block_params - model.expert_params * (1 - model.top_k / model.experts if model.experts else 0)


def _scores(model: Transformer) -> float:
    """Return the FLOPs of the forward attention of one token to all tokens of its sample."""
    return 4.0 * model.layers * model.seq * model.span * model.heads * model.head_dim


def _recomputed(case: Case) -> float:
    model, how = case.model, case.training
    if isinstance(model, ConvNet):
        return 0.0
    tokens = model.seq * case.global_batch * how.recomputed_share
    if how.recompute == "attention":
        return _scores(model) * tokens
    return _AGAIN.get(how.recompute, 0.0) * (2 * _active(model) + _scores(model)) * tokens
