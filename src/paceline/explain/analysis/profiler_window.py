"""The profiled steps of a rank: operators with their self times, matrix products, and element-wise operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from paceline.record.run import Rank

_TINY_S = 20e-6


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The time of one operator in the profiled steps, without operators that it called."""

    name: str
    count: int
    self_s: float  # self time on the host
    device_self_s: float | None = None  # self time on the device; None without a device

    @property
    def time_s(self) -> float:
        """Self time on the training device."""
        return self.self_s if self.device_self_s is None else self.device_self_s


@dataclass(frozen=True, kw_only=True)
class ProductSize:
    """Matrix products of one size: (m x k) times (k x n), `batch` at a time, `count` times in the profiled steps."""

    batch: int
    m: int
    n: int
    k: int
    count: int

    @property
    def flops(self) -> float:
        """Floating-point operations of all these products."""
        return 2.0 * self.batch * self.m * self.n * self.k * self.count


@dataclass(frozen=True, kw_only=True)
class MatrixWork:
    """The matrix work of the profiled steps."""

    flops: Mapping[str, float]  # by kind: matmul, convolution, attention
    products: Sequence[ProductSize]  # the largest products
    uncounted: Sequence[str]  # operators whose FLOPs cannot be computed from their shapes


@dataclass(frozen=True, kw_only=True)
class ProfilerWindow:
    """The profiled steps of one rank."""

    steps: int
    wall_s: float
    operators: Sequence[Operator]  # the operator with most self time first
    matrix_work: MatrixWork | None = None  # counted on a GPU only

    @property
    def flops_per_step(self) -> float | None:
        """Floating-point operations of the matrix work in one step, or None if not all of them were counted."""
        if self.matrix_work is None or self.matrix_work.uncounted:
            return None
        return sum(self.matrix_work.flops.values()) / self.steps

    @property
    def operators_per_step(self) -> float:
        """Number of operators that the host issued per step."""
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
    """Return the last summary of profiled steps that the recorder wrote, or None if no steps were profiled."""
    notes = [note for note in rank.noted("window") if note.get("operators") and note.get("steps")]
    if not notes:
        return None
    note: dict[str, Any] = dict(notes[-1])
    return ProfilerWindow(
        steps=int(note["steps"]),
        wall_s=float(note["wall_s"]),
        operators=sorted(_operators(note["operators"]), key=lambda o: -o.time_s),
        matrix_work=msgspec.convert(note.get("matrix_work"), MatrixWork | None),
    )


def _operators(told: list[dict[str, Any]]) -> list[Operator]:
    """Return the operators of a summary. Where one ran on a device, those without a device time took none there."""
    operators = msgspec.convert(told, list[Operator])
    if all(operator.device_self_s is None for operator in operators):
        return operators
    return [replace(o, device_self_s=o.device_self_s or 0.0) for o in operators]


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
    """Return whether an ATen operator, by its name, is element-wise or a reduction (forward or backward)."""
    if not name.startswith("aten::"):
        return False
    bare = name.removeprefix("aten::").removeprefix("_").rstrip("_")
    for suffix in ("_backward_data", "_backward", "_jvp", "_out"):
        bare = bare.removesuffix(suffix)
    return bare in _ELEMENTWISE
