"""Autocast on the meta device, where torch itself does not cast: the casts that a GPU would run.

The two lists are those of torch's documentation ("CUDA Ops that can autocast"), as far as they are called as functions.
The cast of a weight is kept until the outermost autocast ends, as torch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NARROW = frozenset(
    (
        *(
            "linear",
            "matmul",
            "__matmul__",
            "__rmatmul__",
            "mm",
            "bmm",
            "mv",
            "addmm",
            "addbmm",
            "baddbmm",
            "chain_matmul",
        ),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "prelu"),
        "scaled_dot_product_attention",
    )
)
_WIDE = frozenset(
    (
        *("__pow__", "__rpow__", "pow", "exp", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt"),
        *("layer_norm", "group_norm", "norm", "cosine_similarity", "logsumexp", "softplus", "cdist", "dist"),
        *("softmax", "log_softmax", "cumsum", "cumprod", "prod", "sum"),
        *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
        "binary_cross_entropy_with_logits",
    )
)


class MetaAutocast:
    """Casts the arguments of a function as autocast does.

    Args:
        torch: The module.
        requested: Returns the name of the format of the innermost autocast; None outside or if it is disabled.
    """

    def __init__(self, torch: Any, requested: Callable[[], str | None]) -> None:
        self._torch, self._requested = torch, requested
        self._weights: dict[int, Any] = {}

    def forget_weights(self) -> None:
        """Drop the casts of weights, at the end of the outermost autocast."""
        self._weights.clear()

    def cast(self, name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of the function of this name in the format that it computes in."""
        asked = self._requested()
        if asked is None or name not in _NARROW | _WIDE:
            return args, kwargs
        kind = getattr(self._torch, asked) if name in _NARROW else self._torch.float32
        return self._in(kind, args), self._in(kind, kwargs)

    def _in(self, kind: Any, value: Any) -> Any:
        if isinstance(value, self._torch.Tensor):
            return self._tensor_in(kind, value)
        if isinstance(value, dict):
            return {key: self._in(kind, each) for key, each in value.items()}
        return type(value)(self._in(kind, each) for each in value) if type(value) in (list, tuple) else value

    def _tensor_in(self, kind: Any, tensor: Any) -> Any:
        if not tensor.is_floating_point() or tensor.dtype in (kind, self._torch.float64):
            return tensor
        if not (tensor.is_leaf and tensor.requires_grad):
            return tensor.to(kind)
        if id(tensor) not in self._weights:
            self._weights[id(tensor)] = tensor.to(kind)
        return self._weights[id(tensor)]
