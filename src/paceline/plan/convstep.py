"""How long does a step of a convolutional network take?

Convolutions at a share of the ceiling, grouped ones at a far lower one; normalisation, activation and the reading and
writing of the maps at memory speed; gradients over the links; and pictures no faster than the node decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.core.errors import UsageError
from paceline.plan.constants import Constants
from paceline.plan.machines import ceiling, link_bytes_per_s, network_bytes_per_s
from paceline.plan.memory import conv_parts
from paceline.plan.model import ConvNet
from paceline.plan.setting import Case, Layout

_LAUNCHES = 12.0  # kernels of a convolution with what follows it, both passes
_PLAIN_FP32 = 1.5  # fp32 without tensor cores comes nearer to its ceiling than formats with them
_MAP_BYTES = {"fp32": 4.0, "tf32": 4.0}


@dataclass(frozen=True, kw_only=True)
class ConvStep:
    """Seconds of a step by part."""

    matrix: float
    bandwidth: float
    launch: float
    reduce: float
    data: float  # what waiting for pictures adds
    optimizer: float
    rest: float

    @property
    def total(self) -> float:
        """The step."""
        return self.matrix + self.bandwidth + self.launch + self.reduce + self.data + self.optimizer + self.rest


def conv_step(case: Case, k: Constants) -> ConvStep:
    """Predict the step of a convolutional network.

    Raises:
        TypeError: The model is none.
    """
    model, how, gpu = case.model, case.training, case.cluster.gpu
    if not isinstance(model, ConvNet):
        raise TypeError(f"{model.name} is not a convolutional network")
    samples = how.micro_batch * how.micro_steps
    speed = ceiling(gpu, how.precision)
    share = k.conv_share * (k.conv_tf32 if how.precision == "tf32" else _PLAIN_FP32 if how.precision == "fp32" else 1.0)
    matrix = 3 * samples * (model.flops - model.narrow_flops) / (share * speed)
    width = _MAP_BYTES.get(how.precision, 2.0)
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
    feeding = samples * case.cluster.count / case.cluster.nodes / _decoded(case, k)
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


def replicas(whole: Case, batch: int, micro_batch: int | None) -> list[Case]:
    """Return a case with each size of its micro-batches, a power of two or the one that is given.

    Raises:
        UsageError: The layout has another axis than dp, takes another number of GPUs, or does not divide the batch.
    """
    count = whole.cluster.count
    if whole.layout != Layout(dp=count):
        raise UsageError(
            f"for convolutional networks, only data parallelism with one replica per GPU is supported; "
            f"give --layout dp={count}"
        )
    if batch % count:
        near = max(1, batch // count) * count
        raise UsageError(f"a batch of {batch} cannot be split evenly over {count} GPUs; give --batch {near}")
    each = batch // count
    powers = [2**power for power in range(each.bit_length()) if each % 2**power == 0]
    sizes = [micro_batch] if micro_batch else sorted({*powers, each})
    if each % sizes[0]:
        raise UsageError(f"{each} samples per GPU are not a multiple of the micro-batch {sizes[0]}")
    how = whole.training
    return [replace(whole, training=replace(how, micro_batch=float(size), micro_steps=each // size)) for size in sizes]


def held_by_replica(case: Case, k: Constants) -> dict[str, float]:
    """Predict the parts of the peak in bytes, as nvidia-smi shows it."""
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


def _decoded(case: Case, k: Constants) -> float:
    """Pictures that the processors of one node decode in a second; nodes of that card's time."""
    return k.images_volta if case.cluster.gpu.architecture == "Volta" else k.images_ampere
