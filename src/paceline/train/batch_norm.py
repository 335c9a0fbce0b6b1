"""BatchNorm over the batches of all ranks: forward and backward use the statistics of the global batch.

torch's SyncBatchNorm does the same but runs on GPUs only. mean = sum(x) / N, var = sum((x - mean)^2) / N over
the rows of all ranks (Ioffe and Szegedy 2015); the running variance divides by N - 1. If all ranks have the same rows
and no gradients, as when a program calls the model with whole batches, N is the number of rows of one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.core.errors import UsageError

Total = Callable[[Any], Any]  # sums a tensor over ranks; its gradient is summed over ranks too


def share(model: Any, group: Any) -> None:
    """Make the BatchNorm layers of a model use the statistics of all ranks of a group in training.

    Args:
        model: A module. The forward methods of its BatchNorm layers are replaced in place.
        group: Process group of the ranks that have different samples and call the model equally often.

    Raises:
        UsageError: A BatchNorm layer has its own forward method, so its statistics would be those of one rank.
    """
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    for name, part in model.named_modules():
        if not isinstance(part, _BatchNorm) or isinstance(part, nn.SyncBatchNorm):
            continue
        if type(part).forward is not _BatchNorm.forward:
            raise UsageError(
                f"{name} ({type(part).__name__}) is a BatchNorm with its own forward method, so its statistics "
                "would cover the samples of one rank only; use torch.nn.BatchNorm, or a norm without batch statistics"
            )
        part.forward = partial(_forward, part, _total_over(group))


def _forward(part: Any, total: Total, values: Any) -> Any:
    """Run the forward pass of a BatchNorm layer; in training its statistics are those of all ranks."""
    if not part.training:
        return _evaluated(part, values)
    part._check_input_dim(values)
    factor, kept = part.momentum, part.track_running_stats and part.running_mean is not None
    if kept and part.num_batches_tracked is not None:
        part.num_batches_tracked.add_(1)
        factor = 1 / float(part.num_batches_tracked) if factor is None else factor
    running = (part.running_mean, part.running_var) if kept else (None, None)
    normal = normalised(values, total, (*running, factor, part.eps))
    return scaled(normal, part.weight, part.bias).to(values.dtype)


def _evaluated(part: Any, values: Any) -> Any:
    """Run the forward pass of a BatchNorm layer in evaluation mode, with parameters in the format of its statistics.

    FSDP2 gathers parameters in 16 bits and keeps statistics in fp32, and torch does not take both on a CPU.
    """
    import torch

    mean, weight, bias = part.running_mean, part.weight, part.bias
    if mean is None or weight is None or weight.dtype == mean.dtype:
        return type(part).forward(part, values)
    part._check_input_dim(values)
    weight, bias = weight.to(mean.dtype), None if bias is None else bias.to(mean.dtype)
    return torch.nn.functional.batch_norm(values, mean, part.running_var, weight, bias, False, 0.0, part.eps)


def _total_over(group: Any) -> Total:
    """Return a differentiable function that sums a tensor over the ranks of a group."""
    import torch
    from torch.autograd.function import once_differentiable

    def summed(value: Any) -> Any:
        value = value.contiguous().clone()
        torch.distributed.all_reduce(value, group=group)
        return value

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return summed(value)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Any) -> Any:
            return summed(gradient)

    return Sum.apply


def normalised(input: Any, total: Total, settings: tuple[Any, Any, float, float]) -> Any:
    """Return `(x - mean) / sqrt(var + eps)` with the statistics of all ranks, and update the running statistics.

    Args:
        input: `[rows, channels, ...]`, the rows of this rank. 16-bit formats are computed in fp32.
        total: Sums a tensor over ranks.
        settings: Running mean and running variance (each can be None), momentum, and eps, which is added to the
            variance.
    """
    import torch

    running_mean, running_var, momentum, eps = settings
    values = input.float() if input.element_size() < 4 else input
    over, shape = [0, *range(2, input.dim())], _shape(input)
    counted = values.new_tensor([values.numel() / values.shape[1]])
    own, is_training = values.sum(over), torch.is_grad_enabled()
    sums = total(torch.cat([own, counted]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    apart = values - mean.view(shape)
    found = total(torch.cat([(apart * apart).sum(over), _differs(own, sums[:-1], count / counted)]))
    variance = found[:-1] / count
    if running_mean is not None:  # also when a block is recomputed, as on one process
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(mean.detach().to(running_mean.dtype), alpha=momentum)
            rows = count if is_training else torch.where(found[-1] == 0, counted, count)
            unbiased = variance.detach() * rows / (rows - 1)
            running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return apart * torch.rsqrt(variance + eps).view(shape)


def _differs(own: Any, sums: Any, ranks: Any) -> Any:
    """Return 1 if the rows of this rank differ from those of the other ranks, otherwise 0: `[1]`.

    Args:
        own: The sum of each channel over the rows of this rank.
        sums: The sums over the rows of all ranks.
        ranks: The number of ranks, if all have equally many rows.
    """
    import torch

    with torch.no_grad():
        rounding = 4 * torch.finfo(own.dtype).eps * sums.abs()
        return ((own * ranks - sums).abs() > rounding).any().to(own.dtype).view(1)


def scaled(normal: Any, weight: Any, bias: Any) -> Any:
    """Return normalised values times the weight of each channel plus its bias; weight and bias can be None."""
    shape = _shape(normal)
    found = normal if weight is None else normal * weight.view(shape)
    return found if bias is None else found + bias.view(shape)


def _shape(values: Any) -> list[int]:
    """Return the shape in which one number per channel broadcasts against values `[rows, channels, ...]`."""
    return [1, -1, *[1] * (values.dim() - 2)]


def is_shared(model: Any) -> bool:
    """Return whether a BatchNorm layer of the model takes its statistics over several ranks."""
    return any(getattr(part.forward, "func", None) is _forward for part in model.modules())
