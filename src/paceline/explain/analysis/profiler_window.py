"""The profiled steps of a rank: operators by their own time, matrix work, and which operators are element-wise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.record.run import Rank

_TINY_S = 20e-6


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator's time in the window, without that of the operators it called."""

    name: str
    count: int
    self_s: float  # of the host
    device_self_s: float | None = None  # of the device, where there is one

    @property
    def time_s(self) -> float:
        """Its own time on the device that computes."""
        return self.self_s if self.device_self_s is None else self.device_self_s


@dataclass(frozen=True, kw_only=True)
class ProductSize:
    """Matrix products of one size: (m x k) times (k x n), `batch` at a time, `count` times in the window."""

    batch: int
    m: int
    n: int
    k: int
    count: int

    @property
    def flops(self) -> float:
        """Operations of all of them."""
        return 2.0 * self.batch * self.m * self.n * self.k * self.count


@dataclass(frozen=True, kw_only=True)
class MatrixWork:
    """The matrix work of the window."""

    flops: Mapping[str, float]  # matmul, convolution, attention
    products: Sequence[ProductSize]  # the largest
    uncounted: Sequence[str]  # what also computes, in a way that shapes do not tell


@dataclass(frozen=True, kw_only=True)
class ProfilerWindow:
    """The profiler window of one rank."""

    steps: int
    wall_s: float
    operators: Sequence[Operator]  # most self time first
    matrix_work: MatrixWork | None = None  # counted on a GPU only

    @property
    def flops_per_step(self) -> float | None:
        """Floating-point operations of a step's matrix work; None when they were not, or not all, counted."""
        if self.matrix_work is None or self.matrix_work.uncounted:
            return None
        return sum(self.matrix_work.flops.values()) / self.steps

    @property
    def operators_per_step(self) -> float:
        """How many operators the host issued in a step."""
        return sum(o.count for o in self.operators) / self.steps

    @property
    def operator_s(self) -> float:
        """Seconds spent in operators."""
        return sum(o.time_s for o in self.operators)

    @property
    def tiny_share(self) -> float:
        """Share of operator time in operators that take less than 20 µs each on average."""
        tiny = sum(o.time_s for o in self.operators if o.time_s < _TINY_S * o.count)
        return tiny / self.operator_s if self.operator_s > 0 else 0.0


def read_window(rank: Rank) -> ProfilerWindow | None:
    """Read the summary that the probe made of its profiler window; None when none was taken; the last of several."""
    notes = [note for note in rank.noted("window") if note.get("operators") and note.get("steps")]
    if not notes:
        return None
    note: dict[str, Any] = dict(notes[-1])
    operators = msgspec.convert(note["operators"], list[Operator])
    return ProfilerWindow(
        steps=int(note["steps"]),
        wall_s=float(note["wall_s"]),
        operators=sorted(operators, key=lambda o: -o.time_s),
        matrix_work=msgspec.convert(note.get("matrix_work"), MatrixWork | None),
    )


# ----------------------------------------------------------------------------------------------- element-wise operators


_ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "add",
        "addcdiv",
        "addcmul",
        "asin",
        "atan",
        "atan2",
        "bernoulli",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "ceil",
        "celu",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "contiguous",
        "copy",
        "cos",
        "cosh",
        "cumsum",
        "div",
        "dropout",
        "elu",
        "eq",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "fill",
        "floor",
        "fmod",
        "frac",
        "ge",
        "gelu",
        "glu",
        "gt",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "huber_loss",
        "isfinite",
        "isnan",
        "l1_loss",
        "le",
        "leaky_relu",
        "lerp",
        "log",
        "log10",
        "log1p",
        "log2",
        "log_sigmoid",
        "log_softmax",
        "logical_and",
        "logical_not",
        "logical_or",
        "logit",
        "lt",
        "masked_fill",
        "max",
        "maximum",
        "mean",
        "min",
        "minimum",
        "mish",
        "mse_loss",
        "mul",
        "native_dropout",
        "native_layer_norm",
        "ne",
        "neg",
        "norm",
        "normal",
        "ones",
        "ones_like",
        "pow",
        "prelu",
        "random",
        "reciprocal",
        "relu",
        "relu6",
        "remainder",
        "round",
        "rsqrt",
        "rsub",
        "selu",
        "sgn",
        "sigmoid",
        "sign",
        "silu",
        "sin",
        "sinh",
        "smooth_l1_loss",
        "softmax",
        "softplus",
        "sqrt",
        "square",
        "std",
        "sub",
        "sum",
        "tan",
        "tanh",
        "threshold",
        "trunc",
        "uniform",
        "var",
        "var_mean",
        "where",
        "zero",
        "zeros",
        "zeros_like",
    ]
)


def is_elementwise(name: str) -> bool:
    """Say whether an ATen operator is element-wise or a reduction, forward or backward, by its name."""
    if not name.startswith("aten::"):
        return False
    bare = name.removeprefix("aten::").removeprefix("_").rstrip("_")
    for suffix in ("_backward_data", "_backward", "_jvp", "_out"):
        bare = bare.removesuffix(suffix)
    return bare in _ELEMENTWISE
