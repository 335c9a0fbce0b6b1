"""The family and the sizes of an operator, which determine its time.

Operators are recorded by `inprocess.first_step.operator_counter`. Operators of one family differ only in their sizes,
so that measured operators predict others. The sizes of matrix products are m, n and k, with their memory layout; those
of convolutions are channels, pixels and kernel; those of attention are heads, length and width; the size of all other
operators is the number of bytes of their operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FREE = "free"  # returns a view or a number: no arithmetic and no memory
_VIEWS = frozenset(
    (
        *("view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "detach", "alias"),
        *("slice", "select", "split", "split_with_sizes", "unbind", "as_strided", "lift_fresh", "_local_scalar_dense"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "reshape", "_reshape_alias"),
    )
)
_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "uint8": 1, "int8": 1, "bool": 1}
_BY_ROWS = ("norm", "softmax", "sum", "mean", "max", "embedding", "nll")  # their time depends on the row length too
_STEP_PARTS = {"product": "matrix", "convolution": "convolution", "attention": "attention", FREE: "host"}


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """The properties of an operator that determine its time.

    Attributes:
        family: Name shared by operators that differ only in their sizes.
        sizes: The sizes that determine the time, each above zero.
        work: Floating-point operations, or bytes for operators that mainly move data.
        operand_bytes: Bytes of all tensor arguments.
    """

    family: str
    sizes: tuple[float, ...]
    work: float
    operand_bytes: float

    @property
    def part(self) -> str:
        """Return the part of a step, such as ``matrix``, to which the operator's time is added."""
        return _STEP_PARTS.get(self.family.partition(".")[0], "bandwidth")


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * _BYTES.get(self.dtype, 4)

    @property
    def lies(self) -> str:
        """Return whether rows or columns are contiguous in memory: ``n`` for rows, ``t`` for columns."""
        return "n" if self.strides[-1] == 1 or self.shape[-1] == 1 else "t"


def kind_of(operator: Mapping[str, Any]) -> OperatorKind:
    """Return family, sizes and work of a recorded operator."""
    name = str(operator["op"]).split(".")[1] if "." in operator["op"] else str(operator["op"])
    tensors = list(_tensors([operator["args"], operator["kwargs"]]))
    moved = float(sum(each.bytes for each in tensors))
    if name in _VIEWS or str(operator["op"]).startswith("profiler"):
        return OperatorKind(FREE, (1.0,), 1.0, 0.0)
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        return _product(tensors[-2:], moved)
    if name.startswith("convolution"):
        return _convolution(operator, tensors, moved)
    if "scaled_dot_product" in name or "flash_attention" in name:
        return _attention(operator, name, tensors, moved)
    return _moving(operator, tensors, moved)


def _product(pair: Sequence[_Tensor], moved: float) -> OperatorKind:
    left, right = pair
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    count = math.prod(left.shape[:-2])
    batched = f"b{left.lies}{right.lies}" if len(left.shape) > 2 else left.lies + right.lies
    sizes = (m, n, k, count) if len(left.shape) > 2 else (m, n, k)
    return OperatorKind(f"product.{batched}.{left.dtype}", _positive(sizes), max(1.0, 2.0 * m * n * k * count), moved)


def _convolution(operator: Mapping[str, Any], tensors: Sequence[_Tensor], moved: float) -> OperatorKind:
    args = operator["args"]
    if operator["op"].startswith("aten.convolution_backward"):
        out, given, weight = tensors[:3]
        wanted = sum(bool(each) for each in args[-1][:2])
        places, way = list(out.shape[2:]), "both" if wanted == 2 else "one"
    else:
        given, weight = tensors[:2]
        places = [
            (side + 2 * pad - gap * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, pad, gap in zip(given.shape[2:], weight.shape[2:], *args[3:6], strict=False)
        ]
        wanted, way = 1, "forward"
    pixels, kernel = math.prod(places), math.prod(weight.shape[2:])
    step = math.prod(given.shape[2:]) / max(1, pixels)
    work = 2.0 * given.shape[0] * pixels * weight.shape[0] * weight.shape[1] * kernel * max(1, wanted)
    sizes = (given.shape[0], weight.shape[1], weight.shape[0], pixels, kernel, step)
    return OperatorKind(f"convolution.{way}.{given.dtype}", _positive(sizes), max(1.0, work), moved)


def _attention(operator: Mapping[str, Any], name: str, tensors: Sequence[_Tensor], moved: float) -> OperatorKind:
    query = next(each for each in tensors if len(each.shape) == 4)
    batch, heads, length, width = query.shape
    causal = any(each is True for each in [*operator["args"], *operator["kwargs"].values()])
    way = "backward" if "backward" in name else "forward"
    family = f"attention.{way}.{'causal' if causal else 'full'}.{query.dtype}"
    work = 4.0 * batch * heads * length**2 * width * (2.5 if way == "backward" else 1.0)
    return OperatorKind(family, _positive((batch * heads, length, width)), work / (2 if causal else 1), moved)


def _moving(operator: Mapping[str, Any], tensors: Sequence[_Tensor], moved: float) -> OperatorKind:
    name = operator["op"]
    if name.startswith("aten.embedding.") and len(tensors) >= 2:
        moved = float(tensors[1].bytes + 2 * tensors[1].size * tensors[0].shape[-1] * 4)
    dtype = max(tensors, key=lambda each: each.bytes).dtype if tensors else "none"
    largest = max((each for each in tensors), key=lambda each: each.size, default=None)
    row = largest.shape[-1] if largest is not None and largest.shape else 1
    whole = max(moved, 4.0 * _numbers(operator["args"])) if not tensors else moved
    sizes = (max(whole, 4.0), float(row)) if any(word in name for word in _BY_ROWS) else (max(whole, 4.0),)
    return OperatorKind(f"each.{name.removeprefix('aten.')}.{dtype}", _positive(sizes), max(whole, 4.0), moved)


def _numbers(args: Sequence[Any]) -> int:
    """Return the number of elements of the tensor that an operator such as `torch.empty` creates from a shape."""
    shape = next((each for each in args if isinstance(each, list)), [])
    return math.prod(each for each in shape if isinstance(each, int))


def _positive(sizes: Sequence[float]) -> tuple[float, ...]:
    return tuple(max(float(each), 1e-3) for each in sizes)


def _tensors(value: Any) -> Iterator[_Tensor]:
    if isinstance(value, dict):
        if "t" in value:
            shape, strides, dtype = value["t"]
            yield _Tensor(tuple(shape), tuple(strides) or (1,), dtype) if shape else _Tensor((1,), (1,), dtype)
            return
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _tensors(each)
