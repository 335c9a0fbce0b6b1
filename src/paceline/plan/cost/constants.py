"""The fitted constants of the formulas, and the errors of predictions that are made with these constants.

data/fitted.json holds the constants; benchmarks/plan/fit.py writes it. `PRIOR` gives for each constant a plausible
value and the standard deviation of its logarithm. The fit includes this prior, so a constant that the measurements
hardly determine stays near its plausible value.

The logarithm of measured over predicted memory is treated as normally distributed, with the standard deviation that
measurements outside the fit have. A plan is chosen only if it fits in memory with probability `SURE`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources

from paceline.plan.cost.case import Case, Training
from paceline.plan.cost.columns import Floats
from paceline.plan.models.architecture import ConvNet, Transformer


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The fitted constants. Shares of a peak are between 0 and 1, times in seconds."""

    # share of the measured peak that large products reach in a whole step
    matrix_volta: float
    matrix_ampere: float
    matrix_hopper: float
    matrix_blackwell: float
    matrix_fp8: float  # factor on the above, of the ceiling for 8 bits
    matrix_fp4: float
    matrix_wide: float  # tf32 and fp32
    small_products: float  # share of the time to read and write operands that delays a product
    grouped: float  # speed of expert products relative to dense ones of that size, in 16 bits
    grouped_low: float  # the same below 16 bits
    # attention, of the 16-bit ceiling
    early_ampere: float  # kernels from before FlashAttention-2, or in Triton
    early_hopper: float
    flash_ampere: float
    flash_hopper: float
    tuned_hopper: float  # kernels made for the GPU
    tuned_blackwell: float
    plain_passes: float  # number of times that scores are read or written if only their softmax is fused
    plain_passes_eager: float  # the same if nothing is fused
    # bandwidth-bound work
    passes_eager: float  # activations moved, relative to the formula
    passes_fused: float
    passes_counted: float  # peak memory bandwidth divided by the bandwidth at which counted bytes are moved
    loss_passes: float  # over the logits
    # the host
    kernel_eager_s: float  # one launch
    kernel_fused_s: float
    step_s: float  # fixed time of a step: clipping, logging, the optimizer's launches
    # communication
    link_share: float  # of the domain's links
    network_share: float
    message_s: float  # latency of one step of a ring in the domain
    hop_s: float  # between nodes
    tensor_exposed: float  # share of overlappable tensor-parallel messages that is not hidden
    reduce_exposed: float  # share of overlappable shard and gradient messages that is not hidden
    piecewise: float  # factor on the network's share if weights are gathered tensor by tensor
    expert_exposed: float
    expert_passes: float  # activations moved to sort tokens by expert, per token and expert
    stage_exposed: float  # of messages between pipeline stages
    imbalance: float  # per doubling of the nodes
    # convolutions
    conv_share: float
    conv_narrow: float
    conv_tf32: float  # times the share, for tf32
    conv_passes_volta: float  # feature maps read or written per convolution, normalisation and activation, both passes
    conv_passes: float  # on later GPUs, which reach a smaller share of their bandwidth
    conv_swish: float  # factor on that for networks that also scale and gate the maps
    images_ampere: float  # decoded by a node in a second
    images_volta: float
    # memory
    activation: float  # kept bytes relative to the formula
    logits_bytes: float  # per logit, at the peak
    reserved: float  # reserved memory relative to allocated memory
    context: float  # bytes
    workspace: float  # bytes


PRIOR: Mapping[str, tuple[float, float]] = {
    "matrix_volta": (0.75, 0.2),
    "matrix_ampere": (0.85, 0.1),
    "matrix_hopper": (0.78, 0.1),
    "matrix_blackwell": (0.80, 0.1),
    "matrix_fp8": (0.85, 0.15),
    "matrix_fp4": (0.65, 0.2),
    "matrix_wide": (0.85, 0.15),
    "small_products": (0.7, 0.4),
    "grouped": (0.75, 0.2),
    "grouped_low": (0.55, 0.25),
    "early_ampere": (0.4, 0.2),
    "early_hopper": (0.25, 0.25),
    "flash_ampere": (0.5, 0.15),
    "flash_hopper": (0.42, 0.15),
    "tuned_hopper": (0.6, 0.2),
    "tuned_blackwell": (0.55, 0.2),
    "plain_passes": (16.0, 0.3),
    "plain_passes_eager": (26.0, 0.3),
    "passes_eager": (1.3, 0.3),
    "passes_fused": (0.8, 0.3),
    "passes_counted": (1.1, 0.1),
    "loss_passes": (10.0, 0.3),
    "kernel_eager_s": (12e-6, 0.3),
    "kernel_fused_s": (5e-6, 0.4),
    "step_s": (5e-3, 0.3),
    "link_share": (0.75, 0.1),
    "network_share": (0.8, 0.1),
    "message_s": (8e-6, 0.4),
    "hop_s": (2e-5, 0.4),
    "tensor_exposed": (0.5, 0.4),
    "reduce_exposed": (0.2, 0.4),
    "piecewise": (0.3, 0.5),
    "expert_exposed": (0.9, 0.3),
    "expert_passes": (8.0, 0.4),
    "stage_exposed": (0.6, 0.4),
    "imbalance": (0.006, 0.6),
    "conv_share": (0.5, 0.15),
    "conv_narrow": (0.08, 0.6),
    "conv_tf32": (0.6, 0.3),
    "conv_passes_volta": (15.0, 0.2),
    "conv_passes": (20.0, 0.2),
    "conv_swish": (2.0, 0.2),
    "images_ampere": (18e3, 0.2),
    "images_volta": (9e3, 0.2),
    "activation": (1.0, 0.05),
    "logits_bytes": (10.0, 0.3),
    "reserved": (1.05, 0.01),
    "context": (1.2e9, 0.1),
    "workspace": (0.3e9, 0.5),
}


def prior() -> Constants:
    """Return the constants with the values of `PRIOR`."""
    return Constants(**{name: value for name, (value, _) in PRIOR.items()})


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The fitted constants, and the errors of predictions for measurements outside the fit.

    Attributes:
        constants: The fitted values.
        time_spread: For each kind of training, the relative error of the step time that four of five predictions
            stay below.
        memory_spread: Standard deviation of the logarithm of measured over predicted memory.
    """

    constants: Constants
    time_spread: Mapping[str, float]
    memory_spread: float


@cache
def fitted() -> Fitted:
    """Return the constants that were fitted to published measurements."""
    text = resources.files("paceline.plan").joinpath("data", "fitted.json").read_text(encoding="utf-8")
    values = json.loads(text)
    return Fitted(
        constants=read(values["constants"]),
        time_spread=values["time_spread"],
        memory_spread=values["memory_spread"],
    )


def read(values: Mapping[str, float]) -> Constants:
    """Return constants from their names and values; missing ones are taken from the prior."""
    return Constants(**{field.name: float(values.get(field.name, PRIOR[field.name][0])) for field in fields(Constants)})


SURE = 0.9


def probability(needed_bytes: float, available_bytes: float, spread: float) -> float:
    """Return the probability that a predicted peak fits in a device, for a log-normal error.

    Args:
        needed_bytes: The predicted peak, including the CUDA context.
        available_bytes: The memory of the device.
        spread: Standard deviation of the logarithm of measured over predicted memory.
    """
    return 0.5 * (1 + math.erf(math.log(available_bytes / needed_bytes) / spread / math.sqrt(2)))


def probabilities(needed_bytes: Floats, available_bytes: Floats, spread: float) -> list[float]:
    """Return for each predicted peak the probability that this peak fits in its device."""
    return [probability(*pair, spread) for pair in zip(needed_bytes.tolist(), available_bytes.tolist(), strict=True)]


_LONG = 32768  # tokens
_UNSEEN_REGIME = 0.5  # spread of the step time for kinds of training without published rows


def regime_of(case: Case) -> str:
    """Return the kind of training of a case.

    The accuracy of predictions is known for each kind with measurements; all others have the spread of unseen kinds.
    """
    model, how = case.model, case.training
    if isinstance(model, ConvNet) or not model.causal:
        return "CNN, BERT and similar, data parallel"
    if how.adapters:
        return "adapters (LoRA, QLoRA)"
    if case.cluster.count == 1:
        return _alone(model, how)
    return "several GPUs, counted kernels" if how.counted else _of_cluster(model, how, case.cluster.gpu.architecture)


def _of_cluster(model: Transformer, how: Training, architecture: str) -> str:
    """Return the kind of training on several GPUs."""
    if model.experts or architecture.startswith("Blackwell"):
        return "experts (MoE), Blackwell"
    if model.seq >= _LONG or how.precision in ("fp8", "fp4"):
        return "long context, fp8"
    if how.sharded == "parameters":
        return "dense, sharded weights (FSDP, ZeRO-3)"
    if how.kernels == "eager":
        return "dense, several GPUs, kernels not fused"
    return "dense, 3-D parallel, V100" if architecture == "Volta" else "dense, 3-D parallel, A100 and later"


def _alone(model: Transformer, how: Training) -> str:
    """Return the kind of training on one GPU, where no messages are sent."""
    if model.experts:
        return "one GPU, experts (MoE)"
    if model.seq >= _LONG or how.precision in ("fp8", "fp4"):
        return "one GPU, long context, fp8"
    kernels = "kernels fused" if how.kernels == "fused" else "counted kernels" if how.counted else "kernels not fused"
    return f"one GPU, dense, {kernels}"


def spread_of(case: Case, fitted: Fitted) -> float:
    """Return the relative error of the step time for the kind of training of a case.

    Four of five predictions of this kind have a smaller error.
    """
    return fitted.time_spread.get(regime_of(case), _UNSEEN_REGIME)
