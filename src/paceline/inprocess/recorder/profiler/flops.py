"""The floating-point operations of a step: the multiply-adds of matrix operations, from the operators' shapes.

    matrix product  2 m n k          attention  2 b h s_q s_k (d + d_v), its backward twice that
    convolution     2 |output| c_in/groups |kernel|, its backward the same for each gradient

The count follows model FLOP utilisation: recomputation inside a fused attention's backward does not count,
recomputation by the program (activation checkpointing) does. The gradient of an input with at most four channels is
assumed not to be computed, because such an input is the image itself. The formulas are those of
torch.utils.flop_counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

Shape = tuple[int, ...]
Shapes = Sequence[Shape]

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
_ATTENTION = "aten::_scaled_dot_product_"
# Kernels whose matrix work cannot be computed from shapes, and compiled code, which may bypass operators.
_OPAQUE = ("aten::_cudnn_rnn", "aten::_thnn_fused", "flash_attn::", "xformers::", "aten::_grouped_mm")
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")
_DATA_CHANNELS = 4
_MOST_PRODUCTS = 16


class StepFlops:
    """Sums the matrix work of the operators of one profiler window."""

    def __init__(self) -> None:
        self._flops = {"matmul": 0, "convolution": 0, "attention": 0}
        self._products: Counter[tuple[int, int, int, int]] = Counter()  # batch, m, n, k
        self._convolutions: Counter[tuple[Shape, Shape]] = Counter()  # forward convolutions: input, weight
        self._forward: dict[tuple[Shape, Shape], int] = {}  # FLOPs of a forward convolution, once known
        self.uncounted: set[str] = set()

    def take(self, name: str, shapes: Sequence[Any], told: int = 0) -> None:
        """Count one operator by its input shapes. ``told`` is the profiler's own count of the operator's FLOPs."""
        if name.startswith((*_OPAQUE, *_COMPILED)):
            self.uncounted.add("compiled code" if name.startswith(_COMPILED) else name)
        elif name in _PRODUCTS:
            self._take_product([tuple(s) for s in shapes[_PRODUCTS[name] :][:2]])
        elif name.startswith("aten::conv"):
            self._take_convolution(name, [tuple(s) for s in shapes[:3]], told)
        elif name.startswith(_ATTENTION) and "_math" not in name:  # the math variant calls counted products
            self._take_attention(name, [tuple(s) for s in shapes[:4]])

    def _take_product(self, shapes: Shapes) -> None:
        if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) < 2:
            return
        batch, (m, k), n = prod(shapes[0][:-2]), shapes[0][-2:], shapes[1][-1]
        self._products[batch, m, n, k] += 1
        self._flops["matmul"] += 2 * batch * m * n * k

    def _take_convolution(self, name: str, shapes: Shapes, told: int) -> None:
        if min(map(len, shapes[:2]), default=0) < 3:
            return
        if name == "aten::convolution_backward" and len(shapes) == 3:
            output, given, weight = shapes
            flops = _convolution(output, given, weight)
            self._forward.setdefault((given, weight), flops)
            self._flops["convolution"] += flops * (1 if given[1] <= _DATA_CHANNELS else 2)
        elif name == "aten::convolution" and len(shapes) >= 2:
            self._convolutions[shapes[0], shapes[1]] += 1
        elif told and len(shapes) >= 2:  # aten::conv2d, which calls the counted aten::convolution
            self._forward[shapes[0], shapes[1]] = told

    def _take_attention(self, name: str, shapes: Shapes) -> None:
        backward = name.endswith("_backward")
        inputs = shapes[1:4] if backward else shapes[:3]
        if len(inputs) < 3 or min(map(len, inputs)) < 4:
            return
        query, key, value = inputs
        flops = 2 * prod(query[:3]) * key[2] * (query[3] + value[3])
        self._flops["attention"] += flops * (2 if backward else 1)

    def as_json(self) -> dict[str, Any]:
        """Return FLOPs by kind, the largest products, and the operators that could not be counted."""
        forward = 0
        for key, count in self._convolutions.items():
            if key in self._forward:
                forward += count * self._forward[key]
            else:
                self.uncounted.add("aten::convolution without a backward")
        flops = self._flops | {"convolution": self._flops["convolution"] + forward}
        sized = sorted(self._products.items(), key=lambda item: -_size(*item))[:_MOST_PRODUCTS]
        products = [{"batch": b, "m": m, "n": n, "k": k, "count": count} for (b, m, n, k), count in sized]
        return {"flops": flops, "products": products, "uncounted": sorted(self.uncounted)}


def _size(dims: tuple[int, ...], count: int) -> int:
    return prod(dims) * count


def _convolution(output: Shape, given: Shape, weight: Shape) -> int:
    """Return the FLOPs of a convolution's forward; a transposed convolution applies the kernel at input positions."""
    transposed = given[1] == weight[0] != output[1] or (given[1] == weight[0] and prod(output[2:]) > prod(given[2:]))
    places = given if transposed else output
    return 2 * prod(places) * prod(weight[1:])


def count(events: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Count the matrix work in the profiler's events, which are given per thread and in order."""
    found = StepFlops()
    for thread in events:
        for event in thread:
            if event.kind() == "push":
                found.take(event.name(), event.shapes(), event.flops())
    return found.as_json()
