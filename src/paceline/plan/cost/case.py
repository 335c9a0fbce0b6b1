"""One case to predict: the model, the layout of the ranks, the settings of the training loop, and the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import Gpu
from paceline.plan.models.adapters import Adapters
from paceline.plan.models.architecture import Kernels, Model
from paceline.plan.models.counted_step import CountedStep

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
CHUNKED = ("interleaved", "zero-bubble")  # schedules with several stages per rank

AXES = ("dp", "shard", "tp", "pp", "cp", "ep")

Sharded = Literal["nothing", "optimizer", "parameters"]
Recompute = Literal["none", "cheap", "attention", "operators", "half", "full"]
Attention = Literal["plain", "early", "flash", "tuned"]


@dataclass(frozen=True, kw_only=True)
class PlannedLayout:
    """Number of ranks for each axis.

    `ep` needs no ranks of its own: experts are spread over ranks of the other axes, so `ep` is a divisor of
    `dp*shard*cp*tp`.
    """

    dp: int = 1
    shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            if getattr(self, axis) < 1:
                raise UsageError(f"axis {axis} is {getattr(self, axis)}; give a number of 1 or more")

    @property
    def ranks(self) -> int:
        """Return the total number of ranks."""
        return self.dp * self.shard * self.tp * self.pp * self.cp

    def __str__(self) -> str:
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1) or "dp=1"


def parse_layout(text: str) -> PlannedLayout:
    """Read a layout such as ``dp=2,shard=4,tp=2,pp=2``.

    Raises:
        UsageError: An axis is unknown, given twice, or not a whole number above zero.
    """
    given: dict[str, int] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        axis, _, number = part.partition("=")
        if axis not in AXES or axis in given or not number.isdigit():
            raise UsageError(
                f"{part!r} is not a layout axis with a size; write each of {', '.join(AXES)} at most once, such as tp=2"
            )
        given[axis] = int(number)
    return PlannedLayout(**given)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the training loop."""

    micro_batch: float  # samples in one forward pass of one rank; a fraction where sequences are packed
    micro_steps: int = 1  # forward passes of a rank in one step
    precision: str = "bf16"  # a format of `machines.FORMATS`
    recompute: Recompute = "none"  # cheap: norms and activation functions; operators: every second product too;
    # half: every second block
    recomputed_share: float = 1.0  # share of the blocks that `recompute` applies to
    sharded: Sharded = "nothing"  # over dp·shard·cp: "parameters" is FSDP and ZeRO-3, "optimizer" ZeRO-1
    schedule: Schedule = "1f1b"  # pipeline schedule; 1f1b with chunks is interleaved
    chunks: int = 1  # virtual pipeline stages of a rank
    balanced: bool = False  # stages of equal cost, with the output layer (`partition`); else of equally many blocks
    kernels: Kernels = "fused"
    attention: Attention = "flash"  # plain: scores are stored in memory; early: before FlashAttention-2
    overlap_reduce: bool = True  # gradients are reduced during the backward pass
    piecewise: bool = False  # sharded weights are gathered tensor by tensor, as in early DeepSpeed
    overlap_tensor: bool = False  # tensor-parallel messages hide behind matrix products
    sequence_parallel: bool = True
    trainable: int = 0  # number of trained weights if most are frozen; 0: all are trained
    adapters: Adapters = ""  # the kind of adapters on frozen weights
    frozen_bits: float = 16.0  # bits of a frozen weight
    adapted_share: float = 1.0  # as in `Adapted`
    loss_in_place: bool = False  # the gradient of the logits overwrites them
    weight_bytes: float = 2.0  # bytes of a trained weight between steps
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0  # Adam with an fp32 copy of the weights: 4 + 4 + 4
    counted: CountedStep | None = None  # kernels and bytes of the program itself; None: those of the formulas


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs of one kind, and their links."""

    gpu: Gpu
    count: int
    per_node: int
    network_bytes_per_s: float | None = None  # bandwidth of a node, one way; None: the usual bandwidth of such nodes
    memory_gib: float | None = None  # memory of one GPU, if it differs from the table

    def __post_init__(self) -> None:
        if self.count < 1 or self.per_node < 1:
            raise UsageError(f"{self.count} GPUs with {self.per_node} per node; both must be 1 or more")

    @property
    def nodes(self) -> int:
        """Return the number of nodes; the last node can have unused GPUs."""
        return math.ceil(self.count / self.per_node)

    @property
    def memory_bytes(self) -> float:
        """Return the memory of one GPU in bytes."""
        return (self.memory_gib or self.gpu.memory_gb) * 2**30


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration to predict."""

    model: Model
    layout: PlannedLayout
    training: Training
    cluster: Cluster

    @property
    def replicas(self) -> int:
        """Return the number of groups of ranks that see different samples."""
        return self.layout.dp * self.layout.shard

    @property
    def global_batch(self) -> float:
        """Return the number of samples per step."""
        return self.training.micro_batch * self.training.micro_steps * self.replicas
