"""Matrix products, convolutions and attention: their work, their achieved FLOP/s, and their use of tensor cores.

The work of an operator follows from its shapes. A multiply-add counts as two floating-point operations. The bytes are
those of inputs and output, each moved once. A causal attention mask halves the operations if there are as many queries
as keys.

Whether a kernel uses tensor cores follows from its name. Names of cuBLAS and cuDNN kernels contain the instruction
(``s1688``, ``s16816``, ``hmma``), names of CUTLASS the kind (``tensorop``, ``simt``), names of AMD's libraries the
matrix instruction (``MI32x32x8``). ``nvjet`` kernels (Hopper and later) and attention kernels of half precision always
use tensor cores. For other names, such as those of compiled code, the use is unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from paceline.traces.analyze.gpu_time import Kernel

DTYPES = {
    "float": ("fp32", 4), "double": ("fp64", 8), "c10::Half": ("fp16", 2), "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e5m2": ("fp8", 1), "c10::Float8_e4m3fnuz": ("fp8", 1),
}  # fmt: skip
_FORWARD, _BACKWARD = 2, 5  # matrix products of attention; backward recomputes the scores


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """One recorded call of an operator."""

    name: str
    dims: Sequence[Sequence[int]]
    types: Sequence[str]
    values: Sequence[str] = ()  # arguments that are not tensors, as text; "" for tensors


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one operator call: floating-point operations, bytes moved, and number format."""

    flops: int
    bytes: int
    format: str  # "bf16"


def has_formula(name: str) -> bool:
    """Return whether an operator of this name is a matrix product with a known formula."""
    return name in _FORMULAS


def work_of(call: OperatorCall) -> Work | None:
    """Return the work of a call; None without a formula, or without recorded shapes and types."""
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


_Amount = tuple[int, int]  # floating-point operations, and elements that are moved


def _product(call: OperatorCall, first: int) -> _Amount:
    """Return the work of a matrix product of [..., m, k] and [..., k, n]; argument `first` is the first matrix."""
    *batch, rows, inner = call.dims[first]
    *others, inner_too, columns = call.dims[first + 1]
    if inner != inner_too or batch != others:
        raise ValueError(f"{call.dims} are no product")
    many = prod(batch)
    return 2 * many * rows * inner * columns, many * (rows * inner + inner * columns + rows * columns)


def _convolution(places: tuple[int, int, int], transposed: int | None = None) -> Callable[[OperatorCall], _Amount]:
    """Return the formula of a convolution of [n, c, ...] and [k, c/groups, ...].

    Args:
        places: Indices of the arguments with stride, padding and dilation.
        transposed: Index of the argument that says whether the convolution is transposed.
    """

    def formula(call: OperatorCall) -> _Amount:
        image, weights = call.dims[0], call.dims[1]
        if transposed is not None and call.values[transposed] == "True":
            raise ValueError("transposed")
        axes = len(weights) - 2
        stride, padding, dilation = (_numbers(call.values[place], axes) for place in places)
        sides = zip(image[2:], weights[2:], stride, padding, dilation, strict=True)
        out = [image[0], weights[0], *((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d in sides)]
        return 2 * prod(out) * prod(weights[1:]), prod(image) + prod(weights) + prod(out)

    return formula


def _convolution_backward(gradient: int, image: int, mask: int | None = None) -> Callable[[OperatorCall], _Amount]:
    """Return the formula of a convolution's backward pass.

    The gradients of the input and of the weights each take as much work as the forward pass.
    """

    def formula(call: OperatorCall) -> _Amount:
        out, given, kernel = (call.dims[place] for place in (gradient, image, image + 1 if image else 2))
        wanted = call.values[mask] if mask is not None and mask < len(call.values) else ""
        products = ast.literal_eval(wanted)[:2].count(True) if wanted else 2
        return 2 * products * prod(out) * prod(kernel[1:]), products * (prod(out) + prod(kernel) + prod(given))

    return formula


def _attention(query: int, products: int, causal: int) -> Callable[[OperatorCall], _Amount]:
    """Return the formula of attention on queries, keys and values [b, heads, s, d].

    Args:
        query: Index of the argument with the queries; keys and values are the next two.
        products: Number of matrix products.
        causal: Index of the argument that says whether the mask is causal.
    """

    def formula(call: OperatorCall) -> _Amount:
        q, k, v = (call.dims[query + place] for place in range(3))
        pairs = q[0] * q[1] * q[2] * k[2]
        if q[2] == k[2] and list(call.values[causal : causal + 1]) == ["True"]:
            pairs //= 2
        return products * pairs * (q[3] + v[3]), products // 2 * (2 * prod(q) + prod(k) + prod(v))

    return formula


def _numbers(text: str, axes: int) -> list[int]:
    """Return one number for each axis from a text such as ``[1, 2]``; a single number counts for all axes."""
    found: Any = ast.literal_eval(text)
    numbers = [int(one) for one in (found if isinstance(found, list) else [found])]
    return numbers * axes if len(numbers) == 1 else numbers


_FORMULAS: Mapping[str, Callable[[OperatorCall], _Amount]] = {
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

_Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """The total nanoseconds, operations and bytes of all calls of an operator with the same shapes."""

    name: str
    shapes: Sequence[Sequence[int]]
    format: str  # such as "bf16"; "tf32" if tensor cores multiply fp32 numbers
    calls: int
    total_ns: int
    flops: int
    bytes: int

    @property
    def flops_per_s(self) -> float | None:
        """Return the achieved FLOP/s; None if the total time is 0."""
        return self.flops / self.total_ns * 1e9 if self.total_ns else None


@dataclass(kw_only=True)
class _ProductTotal:
    work: Work
    calls: int = 0
    total_ns: int = 0
    on_tensor_cores: bool = False


class MatrixProducts:
    """Collects GPU time by matrix product (operator and shapes)."""

    def __init__(self, outer: Iterable[int] = ()) -> None:
        """Create an empty collection.

        Args:
            outer: Ids of calls that are not products themselves, because they contain one.
        """
        self._found: dict[tuple[str, _Shapes], _ProductTotal] = {}
        self._known: dict[int, tuple[str, _Shapes] | None] = dict.fromkeys(outer)

    def take(self, which: int, call: OperatorCall, total_ns: int, on_tensor_cores: bool) -> bool:
        """Add a GPU event to its matrix product; return False if the call has no known formula.

        Args:
            which: Id of the operator call. A call can launch several GPU events, and is counted once.
            call: The name and the shapes of the operator call.
            total_ns: Duration of the GPU event in nanoseconds.
            on_tensor_cores: Whether the event ran on tensor cores.
        """
        if which not in self._known:
            self._known[which] = self._begun(call)
        key = self._known[which]
        if key is None:
            return False
        tally = self._found[key]
        tally.total_ns += total_ns
        tally.on_tensor_cores |= on_tensor_cores
        return True

    def _begun(self, call: OperatorCall) -> tuple[str, _Shapes] | None:
        work = work_of(call)
        if work is None:
            return None
        key = call.name, tuple(tuple(dims) for dims in call.dims if dims)
        self._found.setdefault(key, _ProductTotal(work=work)).calls += 1
        return key

    def found(self) -> list[MatrixProduct]:
        """Return all matrix products, by descending time."""
        made = [_made(name, shapes, tally) for (name, shapes), tally in self._found.items()]
        return sorted(made, key=lambda one: (-one.total_ns, one.name))


def _made(name: str, shapes: _Shapes, tally: _ProductTotal) -> MatrixProduct:
    form = tally.work.format
    return MatrixProduct(
        name=name,
        shapes=shapes,
        format="tf32" if form == "fp32" and tally.on_tensor_cores else form,
        calls=tally.calls,
        total_ns=tally.total_ns,
        flops=tally.calls * tally.work.flops,
        bytes=tally.calls * tally.work.bytes,
    )


_FUNCTION = re.compile(r"(?:void )?([^<(]*)")
_OF_CUTLASS = re.compile(
    r"(?:void )?cutlass\w*::(?:\w+::)*(?:Kernel2?|device_kernel)$"
)  # the template argument names the operation
_MATRIX = re.compile(
    r"gemm|gemv|bmm|matmul|convol|conv2d|conv_|_conv|xmma|nvjet|wgrad|dgrad|fprop|winograd|cijk|fmha|flash|attention|triton_tem|_sdpa_",
    re.IGNORECASE,
)
_NO_PRODUCT = re.compile(
    r"nchwtonhwc|nhwctonchw|convert|im2col|col2im|reduce|permute|softmax|concat|cache|fbgemm|finalize|quantize",
    re.IGNORECASE,
)
_TENSOR = re.compile(
    r"tensorop|tensor_op|hmma|imma|gmma|nvjet|xmma|(?<![0-9])(884|1688|16816|8816|161616|16832)(?![0-9])"
    r"|wmma|warp_specialized|tcgen05|umma|_MI\d+x\d+|mfma|fmhaSm\d+|bmm_\w*E\dm\d",
    re.IGNORECASE,
)
_HALF_ATTENTION = re.compile(r"flash_(fwd|bwd)|fmha.*(bf16|f16)|(bf16|f16|half).*(fmha|attention)", re.IGNORECASE)
_PLAIN = re.compile(
    r"simt|[_v]sgemm|^sgemm|dgemm|implicit_convolve|explicit_convolve|winograd|gemv|depthwise|fmha.*f32"
    r"|[dw]grad_engine|wgrad_alg|[dw]grad2d",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class MatrixTime:
    """GPU time of matrix kernels by their use of tensor cores, in nanoseconds."""

    tensor_ns: int  # on tensor cores, or matrix cores
    plain_ns: int  # without tensor cores
    unknown_ns: int  # the kernel names do not tell

    @property
    def total_ns(self) -> int:
        """Return the total nanoseconds."""
        return self.tensor_ns + self.plain_ns + self.unknown_ns


def on_tensor_cores(name: str) -> bool | None:
    """Return whether a matrix kernel uses tensor cores; None if its name does not tell."""
    if _TENSOR.search(name) or _HALF_ATTENTION.search(name):
        return True
    return False if _PLAIN.search(name) else None


def is_product(name: str) -> bool:
    """Return whether a kernel computes a matrix product, a convolution or attention, judged by its name."""
    found = _FUNCTION.match(name)
    function = found[1] if found is not None else name
    said = name if _OF_CUTLASS.match(function) else function.rpartition("::")[2]
    return bool(_MATRIX.search(said)) and not _NO_PRODUCT.search(said)


def matrix_time(kernels: Sequence[Kernel]) -> MatrixTime:
    """Return the time of matrix kernels with and without tensor cores."""
    own = [(on_tensor_cores(one.name), one.total_ns) for one in kernels if is_product(one.name)]
    tensor, plain, unknown = (sum(ns for where, ns in own if where is which) for which in (True, False, None))
    return MatrixTime(tensor_ns=tensor, plain_ns=plain, unknown_ns=unknown)
