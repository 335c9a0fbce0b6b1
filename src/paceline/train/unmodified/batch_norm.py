"""Patches of torch's batch norm (statistics over the rows of all ranks) and gradient clipping (full weights)."""

from __future__ import annotations

import functools
from typing import Any

from paceline.inprocess import hooks
from paceline.train.batch_norm import normalised, scaled
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.state import Spread
from paceline.train.unmodified.weights import followers


def patch(spread: Spread, exchange: Exchange) -> None:
    """Patch `torch.nn.functional.batch_norm` so that in training the statistics come from the rows of all ranks."""
    functional = spread.torch.nn.functional
    original = functional.batch_norm

    @functools.wraps(original)
    def batch_norm(
        input: Any,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        *others: Any,
        **named: Any,
    ) -> Any:
        training, momentum, eps = _settings(others, named)
        if not training or not _has_part(spread):
            return original(input, running_mean, running_var, weight, bias, training, momentum, eps)
        normal = normalised(input, exchange.total, (running_mean, running_var, momentum, eps))
        return scaled(normal, weight, bias).to(input.dtype)

    hooks.install(functional, "batch_norm", batch_norm)


def _has_part(spread: Spread) -> bool:
    """Return whether this rank has only a part of the batch, even if a library of the program splits the batch."""
    if spread.off:
        distributed = spread.torch.distributed
        return distributed.is_initialized() and distributed.get_world_size() == spread.ranks
    return spread.has_part


def _settings(others: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, float, float]:
    """Return ``training``, ``momentum`` and ``eps`` from the arguments of `torch.nn.functional.batch_norm`."""
    given = {"training": False, "momentum": 0.1, "eps": 1e-5}
    given |= dict(zip(given, others, strict=False)) | named
    return bool(given["training"]), float(given["momentum"]), float(given["eps"])


def patch_norms(spread: Spread) -> None:
    """Patch torch's gradient clipping to use the sharded weights in place of whole ones, and to return full norms."""
    owner = spread.torch.nn.utils.clip_grad
    for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_"):
        if hasattr(owner, name):
            replaced = _replaced(getattr(owner, name))
            hooks.install(owner, name, replaced)
            hooks.install(spread.torch.nn.utils, name, replaced)


def _replaced(original: Any) -> Any:
    @functools.wraps(original)
    def clip(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        given = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
        found = original([followers.sharded_weight(each) for each in given], *args, **kwargs)
        return found.full_tensor() if hasattr(found, "full_tensor") else found

    return clip
