"""The step time and peak memory of a convolutional network.

Convolutions run at a share of the reachable FLOP/s; grouped convolutions run at a far smaller share. Memory bandwidth
limits normalisations and activations. Gradients are sent over the links, and a node decodes images at a limited rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.cost.case import Case
from paceline.plan.cost.constants import Constants
from paceline.plan.cost.machines import ELEMENT_BYTES, ceiling, link_bytes_per_s, network_bytes_per_s
from paceline.plan.models.architecture import ConvNet

_LAUNCHES = 12.0  # kernels per convolution with its normalisation and activation, both passes
_PLAIN_FP32 = 1.5  # factor: fp32 without tensor cores reaches a larger share of its peak than other formats


@dataclass(frozen=True, kw_only=True)
class ConvStep:
    """Seconds of a step by part."""

    matrix: float
    bandwidth: float
    launch: float
    reduce: float
    data: float  # time added by waiting for images
    optimizer: float
    rest: float

    @property
    def total(self) -> float:
        """Return the step time."""
        return self.matrix + self.bandwidth + self.launch + self.reduce + self.data + self.optimizer + self.rest


def conv_step(case: Case, k: Constants) -> ConvStep:
    """Return the predicted step time of a convolutional network by part.

    Raises:
        TypeError: The model is not a convolutional network.
    """
    model, how, gpu = case.model, case.training, case.cluster.gpu
    if not isinstance(model, ConvNet):
        raise TypeError(f"{model.name} is not a convolutional network")
    samples = how.micro_batch * how.micro_steps
    speed = ceiling(gpu, how.precision)
    share = k.conv_share * (k.conv_tf32 if how.precision == "tf32" else _PLAIN_FP32 if how.precision == "fp32" else 1.0)
    matrix = 3 * samples * (model.flops - model.narrow_flops) / (share * speed)
    width = ELEMENT_BYTES[how.precision]
    narrow = 3 * samples * model.narrow_flops / (k.conv_narrow * speed)
    passes = k.conv_passes_volta if gpu.architecture in ("Volta", "Pascal") else k.conv_passes
    passes *= k.conv_swish if model.gated else 1.0
    bandwidth = samples * model.outputs * width * passes / gpu.memory_bytes_per_s
    busy = matrix + narrow + bandwidth
    host = how.micro_steps * model.layers * _LAUNCHES * k.kernel_eager_s
    launch = (busy**4 + host**4) ** 0.25 - busy
    reduce = _reduce_s(case, k, model.params * 4.0, busy)
    optimizer = model.params * 20.0 / gpu.memory_bytes_per_s
    compute = busy + launch + reduce + optimizer
    decoded_per_s = (
        k.images_volta if gpu.architecture == "Volta" else k.images_ampere
    )  # images/s that the CPUs of a node decode
    feeding = samples * case.cluster.count / case.cluster.nodes / decoded_per_s
    data = (compute**4 + feeding**4) ** 0.25 - compute
    return ConvStep(
        matrix=matrix + narrow,
        bandwidth=bandwidth,
        launch=launch,
        reduce=reduce,
        data=data,
        optimizer=optimizer,
        rest=k.step_s / 5,
    )


def replica_memory(case: Case, k: Constants) -> dict[str, float]:
    """Return the predicted peak memory by part, in bytes. The sum is what nvidia-smi shows."""
    parts = conv_parts(case, k)
    return {**parts, "fragmentation": (k.reserved - 1) * sum(parts.values()), "context": k.context}


def _reduce_s(case: Case, k: Constants, gradient_bytes: float, busy: float) -> float:
    count = case.cluster.count
    if count == 1:
        return 0.0
    speed = k.link_share * link_bytes_per_s(case.cluster.gpu)
    if case.cluster.nodes > 1:
        speed = min(speed, k.network_share * network_bytes_per_s(case.cluster) * case.cluster.per_node)
    sent = 2 * gradient_bytes * (count - 1) / count / speed
    return k.reduce_exposed * min(sent, busy) + max(0.0, sent - busy)


def conv_parts(case: Case, k: Constants) -> dict[str, float]:
    """Return the predicted bytes of weights, gradients, optimizer state, activations and workspace.

    With autocast, the weights include their 16-bit copy.

    Raises:
        TypeError: The model is not a convolutional network.
    """
    model, how = case.model, case.training
    if not isinstance(model, ConvNet):
        raise TypeError(f"{model.name} is not a convolutional network")
    width = ELEMENT_BYTES[how.precision]
    return {
        "weights": model.params * (how.weight_bytes + (width if width < how.weight_bytes else 0.0)),
        "gradients": model.params * how.gradient_bytes,
        "optimizer": model.params * how.optimizer_bytes,
        "activations": k.activation * how.micro_batch * (model.kept * width + model.kept_bytes),
        "workspace": k.workspace,
    }
