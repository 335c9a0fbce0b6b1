"""How does BatchNorm see the whole batch? Its statistics are of all ranks' rows, in forward and in backward.

torch's SyncBatchNorm does the same on GPUs, and is not there on a CPU. mean = sum(x) / N, var = sum((x - mean)^2) / N
over all rows (Ioffe and Szegedy 2015); the running variance takes N - 1.
"""

from __future__ import annotations

import functools
from typing import Any

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
        normal = _normalised(spread, exchange, input, (running_mean, running_var, momentum, eps))
        shape = [1, -1, *[1] * (input.dim() - 2)]
        scaled = normal if weight is None else normal * weight.view(shape)
        return (scaled if bias is None else scaled + bias.view(shape)).to(input.dtype)

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


def _normalised(spread: Spread, exchange: Exchange, input: Any, settings: tuple[Any, Any, float, float]) -> Any:
    running_mean, running_var, momentum, eps = settings
    torch, values = spread.torch, input.float() if input.element_size() < 4 else input
    over, shape = [0, *range(2, input.dim())], [1, -1, *[1] * (input.dim() - 2)]
    counted = values.new_tensor([values.numel() / values.shape[1]])
    sums = exchange.total(torch.cat([values.sum(over), counted]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    apart = values - mean.view(shape)
    variance = exchange.total((apart * apart).sum(over)) / count
    if running_mean is not None:  # where a block is computed again too, as on one process
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(mean.detach().to(running_mean.dtype), alpha=momentum)
            unbiased = variance.detach() * count / (count - 1)
            running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return apart * torch.rsqrt(variance + eps).view(shape)
