"""Which kernels multiply matrices, and do they do it on tensor cores? By the names that the libraries give them.

cuBLAS and cuDNN name the instruction (``s1688``, ``s16816``, ``hmma``), CUTLASS the kind (``tensorop``, ``simt``),
AMD's libraries the matrix instruction (``MI32x32x8``); the ``nvjet`` kernels of Hopper and later have nothing else.
Attention kernels of half precision run on them too. Where a name tells nothing, as those of compiled code do, it is not
known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.traces.kernels import Kernel

_FUNCTION = re.compile(r"(?:void )?([^<(]*)")
_OF_CUTLASS = re.compile(r"(?:void )?cutlass\w*::(?:\w+::)*(?:Kernel2?|device_kernel)$")  # what they do is an argument
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
class Matrix:
    """GPU time of kernels that multiply matrices; nanoseconds, added up over kernels."""

    tensor_ns: int  # on tensor cores, or matrix cores
    plain_ns: int  # on none
    unknown_ns: int  # their names do not say

    @property
    def total_ns(self) -> int:
        """All of them."""
        return self.tensor_ns + self.plain_ns + self.unknown_ns


def on_tensor_cores(name: str) -> bool | None:
    """Say whether a kernel that multiplies matrices does so on tensor cores; None where its name does not tell."""
    if _TENSOR.search(name) or _HALF_ATTENTION.search(name):
        return True
    return False if _PLAIN.search(name) else None


def is_product(name: str) -> bool:
    """Say whether a kernel multiplies matrices: products, convolutions, attention."""
    found = _FUNCTION.match(name)
    function = found[1] if found is not None else name
    said = name if _OF_CUTLASS.match(function) else function.rpartition("::")[2]
    return bool(_MATRIX.search(said)) and not _NO_PRODUCT.search(said)


def matrix_of(kernels: Sequence[Kernel]) -> Matrix:
    """Add up the time of kernels that multiply matrices, by what they run on."""
    own = [(on_tensor_cores(one.name), one.total_ns) for one in kernels if is_product(one.name)]
    tensor, plain, unknown = (sum(ns for where, ns in own if where is which) for which in (True, False, None))
    return Matrix(tensor_ns=tensor, plain_ns=plain, unknown_ns=unknown)
