"""How much work is an operator, by the shapes that it was given? Floating-point operations, and bytes at the least.

A multiplication and an addition count as two. Bytes are those of inputs and output, each moved once. Formulas are of
the products themselves; a causal attention mask halves them where queries and keys are as many.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

DTYPES = {
    "float": ("fp32", 4), "double": ("fp64", 8), "c10::Half": ("fp16", 2), "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e5m2": ("fp8", 1), "c10::Float8_e4m3fnuz": ("fp8", 1),
}  # fmt: skip
_FORWARD, _BACKWARD = 2, 5  # products of an attention; backward computes the scores once more


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an operator, as a capture tells it."""

    name: str
    dims: Sequence[Sequence[int]]
    types: Sequence[str]
    values: Sequence[str] = ()  # of what is no tensor, as text; "" where it is one


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a call has to do."""

    flops: int
    bytes: int
    format: str  # "bf16"


def has_formula(name: str) -> bool:
    """Say whether an operator of that name is a product."""
    return name in _FORMULAS


def work_of(call: Call) -> Work | None:
    """Return what a call has to do; None of operators without a formula, and where shapes or types are not told."""
    formula = _FORMULAS.get(call.name)
    if formula is None:
        return None
    try:
        tensor = next(place for place, kind in enumerate(call.types) if kind in DTYPES and call.dims[place])
        flops, moved = formula(call)
    except (IndexError, ValueError, TypeError, StopIteration, SyntaxError):
        return None
    name, size = DTYPES[call.types[tensor]]
    return Work(flops=flops, bytes=moved * size, format=name) if flops > 0 else None


_Amount = tuple[int, int]  # operations, numbers that are moved


def _product(call: Call, first: int) -> _Amount:
    """Of matrices [..., m, k] and [..., k, n] that stand at a place and the next one."""
    *batch, rows, inner = call.dims[first]
    *others, inner_too, columns = call.dims[first + 1]
    if inner != inner_too or batch != others:
        raise ValueError(f"{call.dims} are no product")
    many = prod(batch)
    return 2 * many * rows * inner * columns, many * (rows * inner + inner * columns + rows * columns)


def _convolution(places: tuple[int, int, int], transposed: int | None = None) -> Callable[[Call], _Amount]:
    """Of an input [n, c, ...] and weights [k, c/groups, ...], with stride, padding and dilation at some places."""

    def formula(call: Call) -> _Amount:
        image, weights = call.dims[0], call.dims[1]
        if transposed is not None and call.values[transposed] == "True":
            raise ValueError("transposed")
        axes = len(weights) - 2
        stride, padding, dilation = (_numbers(call.values[place], axes) for place in places)
        sides = zip(image[2:], weights[2:], stride, padding, dilation, strict=True)
        out = [image[0], weights[0], *((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d in sides)]
        return 2 * prod(out) * prod(weights[1:]), prod(image) + prod(weights) + prod(out)

    return formula


def _convolution_backward(gradient: int, image: int, mask: int | None = None) -> Callable[[Call], _Amount]:
    """Of the gradients to the input and to the weights, which stand behind the input; each is as much as forward."""

    def formula(call: Call) -> _Amount:
        out, given, kernel = (call.dims[place] for place in (gradient, image, image + 1 if image else 2))
        wanted = call.values[mask] if mask is not None and mask < len(call.values) else ""
        products = ast.literal_eval(wanted)[:2].count(True) if wanted else 2
        return 2 * products * prod(out) * prod(kernel[1:]), products * (prod(out) + prod(kernel) + prod(given))

    return formula


def _attention(query: int, products: int, causal: int) -> Callable[[Call], _Amount]:
    """Of queries, keys and values, [b, heads, s, d] each, that stand in a row; a value says whether it is causal."""

    def formula(call: Call) -> _Amount:
        q, k, v = (call.dims[query + place] for place in range(3))
        pairs = q[0] * q[1] * q[2] * k[2]
        if q[2] == k[2] and list(call.values[causal : causal + 1]) == ["True"]:
            pairs //= 2
        return products * pairs * (q[3] + v[3]), products // 2 * (2 * prod(q) + prod(k) + prod(v))

    return formula


def _numbers(text: str, axes: int) -> list[int]:
    """Return as many numbers as there are axes, of a text such as ``[1, 1]`` or ``[1]``."""
    found: Any = ast.literal_eval(text)
    numbers = [int(one) for one in (found if isinstance(found, list) else [found])]
    return numbers * axes if len(numbers) == 1 else numbers


_FORMULAS: Mapping[str, Callable[[Call], _Amount]] = {
    "aten::mm": lambda call: _product(call, 0),
    "aten::bmm": lambda call: _product(call, 0),
    "aten::addmm": lambda call: _product(call, 1),
    "aten::_addmm_activation": lambda call: _product(call, 1),
    "aten::baddbmm": lambda call: _product(call, 1),
    "aten::_scaled_mm": lambda call: _product(call, 0),
    "aten::convolution": _convolution((3, 4, 5), 6),
    "aten::_convolution": _convolution((3, 4, 5), 6),
    "aten::cudnn_convolution": _convolution((3, 2, 4)),
    "aten::miopen_convolution": _convolution((4, 3, 5)),
    "aten::cudnn_convolution_relu": _convolution((3, 4, 5)),
    "aten::convolution_backward": _convolution_backward(0, 1, 10),
    "aten::cudnn_convolution_backward": _convolution_backward(1, 0),
    "aten::_scaled_dot_product_flash_attention": _attention(0, _FORWARD, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, _FORWARD, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, _BACKWARD, 7),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, _FORWARD, 6),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, _FORWARD, 6),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, _BACKWARD, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, _BACKWARD, 14),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, _BACKWARD, 11),
}
