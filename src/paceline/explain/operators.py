"""Which operators are limited by memory bandwidth? Those that touch each number once or twice and compute little."""

from __future__ import annotations

_HEAVY = (
    "mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "conv", "attention", "lstm", "gru", "rnn", "einsum",
    "embedding", "index", "gather", "scatter", "sort", "topk", "fft", "cholesky", "svd", "qr", "inverse", "cdist",
)  # fmt: skip
_FREE = ("view", "reshape", "transpose", "permute", "expand", "select", "slice", "detach", "as_strided", "alias", "t")


def is_elementwise(name: str) -> bool:
    """Say whether an ATen operator is element-wise or a reduction, by its name."""
    if not name.startswith("aten::"):
        return False
    bare = name.removeprefix("aten::").removeprefix("_").rstrip("_")
    words = bare.split("_")
    return not any(bare.startswith(h) or h in words for h in _HEAVY) and bare not in _FREE
