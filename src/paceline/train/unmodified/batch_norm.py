"""How does a script's BatchNorm see the whole batch? torch's function takes its statistics over all ranks' rows."""

from __future__ import annotations

import functools
from typing import Any

from paceline.train.batch_norm import normalised, scaled
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.state import Spread


def patch(spread: Spread, exchange: Exchange) -> None:
    """Have batches normalised by the statistics of all their rows."""
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

    functional.batch_norm = batch_norm


def _has_part(spread: Spread) -> bool:
    """Say whether the rows are a part of a batch: also where a library deals them out (its ranks have met then)."""
    if spread.off:
        distributed = spread.torch.distributed
        return distributed.is_initialized() and distributed.get_world_size() == spread.ranks
    return spread.has_part


def _settings(others: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, float, float]:
    """Return what `torch.nn.functional.batch_norm` takes behind the weights."""
    given = {"training": False, "momentum": 0.1, "eps": 1e-5}
    given |= dict(zip(given, others, strict=False)) | named
    return bool(given["training"]), float(given["momentum"]), float(given["eps"])
