"""The gradient of a step over all micro-steps and ranks, and its norm.

A step has losses l_i with weights w_i, over all micro-steps of all ranks that hold different samples. Its
gradient is

    g = sum_i w_i grad l_i / sum_i w_i

With equal weights this is the mean over equal parts. With the numbers of tokens as weights and means over
tokens as losses it is the mean over all tokens. Both equal the gradient of the full batch, also if parts differ
in size. If the weights of a step sum to 0, g is 0.

The norm is that of the whole model: ||g||^2 = sum over all parameters, on whichever rank their parts are.
Gradients with the same mesh and the same split axes are grouped; each group is summed over the ranks that share
its parameters, and the pipeline stages are added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2
from typing import Any

from paceline.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Settings that change gradients before the optimizer step; table ``[optimizer]`` of a recipe."""

    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not (is_number(self.clip_norm) and self.clip_norm > 0):
            raise UsageError(f"optimizer.clip_norm = {self.clip_norm!r} is not allowed; it takes a number above 0")


def is_number(value: Any) -> bool:
    """Return whether a setting is a number; booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Weights:
    """The weights of the losses of a step, summed over its micro-steps.

    Before backward a loss is multiplied by w / (planned micro-steps x unit), so that with equal weights no
    further scaling is needed. The unit is a power of two near the first weight, the same on all ranks; it keeps
    16-bit gradients in range.
    """

    def __init__(self, planned: int, device: Any, group: Any, averaged: bool = True) -> None:
        """Create empty sums.

        Args:
            planned: The number of micro-steps that a step is expected to have.
            device: The device of the sums.
            group: Process group of the ranks with different samples; None if there is only one rank.
            averaged: Whether gradients are averaged over the group; otherwise each rank has its own step.
        """
        self._over = group if averaged else None
        self._planned = planned
        self._device = device
        self._group = group
        self._unit = 1.0
        self._agreed = False
        self.clear()

    def clear(self) -> None:
        """Reset all sums for the next step."""
        self._given: Any = None  # sum of the weights; None if no loss has one
        self._losses: Any = 0.0  # sum of the losses after multiplication
        self.count = 0  # micro-steps with a loss
        self._weighs_nothing: Any = None  # whether the next loss has weight 0; None if it has not
        self.begin()

    def begin(self) -> None:
        """Start another micro-step. Its losses are added and share one weight."""
        self._taken = False
        self._own: Any = None  # weight of this micro-step

    def take(self, weight: Any) -> None:
        """Record the weight of a loss of the current micro-step.

        Args:
            weight: A number or a scalar tensor; None if all losses count alike.

        Raises:
            UsageError: Some losses of a step have a weight and some have none, or two losses of one micro-step have
                different weights.
        """
        if self.count and (weight is None) != (self._given is None):
            raise UsageError(
                "some losses of this step have a weight and others have none; pass a weight to each backward()"
            )
        if self._taken:
            if weight is not None and weight is not self._own and float(weight) != float(self._own):
                raise UsageError(
                    f"two losses of one micro-step have the weights {float(self._own):g} and {float(weight):g}, but "
                    "are added; pass the same weight to both backward(), or use one micro_step() per loss"
                )
            return
        self._taken, self._own = True, weight
        self.count += 1
        if weight is None:
            return
        if not self._agreed:
            unit = _unit(weight, self._device, self._group)
            self._unit, self._agreed = unit or 1.0, unit is not None
        self._given = weight if self._given is None else self._given + weight

    def multiplier(self, weight: Any) -> Any:
        """Return the factor by which a loss with this weight is multiplied before backward."""
        return 1 / self._planned if weight is None else weight / (self._planned * self._unit)

    def multiplied(self, loss: Any, weight: Any) -> Any:
        """Return the loss times its multiplier; 0 if its weight is 0, because such a loss can be NaN."""
        import torch

        found = loss * self.multiplier(weight)
        self._weighs_nothing = nothing = None if weight is None else _is_nothing(weight, found.device)
        return found if nothing is None else torch.where(nothing, torch.zeros_like(found), found)

    def guard(self, output: Any) -> None:
        """Replace the gradients of outputs by 0 in backward if the weight of their loss is 0, because they can be NaN.

        Args:
            output: The model's output in the current micro-step: a tensor, or tensors in tuples, lists and dicts.
        """
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._guarded)

    def _guarded(self, gradient: Any) -> Any:
        return _cleared(self._weighs_nothing, gradient)

    def guard_from(self, weight: Any, output: Any) -> None:
        """Replace the gradients of these outputs by 0 in backward if `weight` is 0.

        Unlike in `guard`, the weight is fixed now: with pp, other micro-batches run before the backward of this one.

        Args:
            weight: The weight of the loss of these outputs; None if all count alike.
            output: A tensor, or tensors in tuples, lists and dicts.
        """
        nothing = None if weight is None else _is_nothing(weight, self._device)
        if nothing is not None:
            for tensor in _tensors(output):
                tensor.register_hook(partial(_cleared, nothing))

    def add(self, loss: Any) -> None:
        """Add a loss, which was already multiplied by its weight, to the sum of losses."""
        self._losses = self._losses + loss.detach()

    def own_sum(self) -> float:
        """Return the sum of this rank's losses, each multiplied by its weight."""
        return float(self._losses)

    def factor(self) -> Any:
        """Return the factor that turns the averaged gradients into those of the step; 1.0 if none is needed."""
        if self._given is None:
            return self._planned / max(1, self.count)
        total = _summed([self._given], self._device, self._over)[0]
        return (self._planned * self._unit * _size(self._over) / total).where(total != 0, 0.0)

    def mean(self, stages: Any) -> Any:
        """Return the weighted mean of the step's losses over all ranks: a scalar tensor, fp64.

        Args:
            stages: Process group of the ranks with the other pipeline stages; None without pp.
        """
        import torch

        weights = self.count if self._given is None else self._given
        losses, total = _summed([self._losses, weights], self._device, self._group)
        if stages is not None:
            torch.distributed.all_reduce(losses, group=stages)
        return losses * (self._planned * (self._unit if self._given is not None else 1.0)) / total


def _unit(weight: Any, device: Any, group: Any) -> float | None:
    """Return a power of two near the largest weight of all ranks; None if the largest weight is 0."""
    import torch

    first = torch.as_tensor(float(weight), device=device)
    if group is not None:
        torch.distributed.all_reduce(first, torch.distributed.ReduceOp.MAX, group=group)
    return 2.0 ** round(log2(float(first))) if float(first) > 0 else None


def _is_nothing(weight: Any, device: Any) -> Any:
    """Return whether a weight is 0, as a scalar tensor; None if the weight is a Python number other than 0."""
    import torch

    if is_number(weight) and weight:
        return None
    return _scalar(weight, torch.float64, device) == 0


def _cleared(nothing: Any, gradient: Any) -> Any:
    """Return a gradient, replaced by zeros if the weight of its loss is 0; None to leave the gradient as it is."""
    return None if nothing is None else gradient.masked_fill(nothing.to(gradient.device), 0.0)


def _tensors(values: Any) -> Iterator[Any]:
    """Yield the tensors in tuples, lists and dicts."""
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
    elif hasattr(values, "register_hook"):
        yield values


def _size(group: Any) -> int:
    import torch

    return 1 if group is None else int(torch.distributed.get_world_size(group))


def _summed(values: Sequence[Any], device: Any, group: Any) -> Any:
    """Return the sums of scalars over a group, in fp64."""
    import torch

    total = torch.stack([_scalar(value, torch.float64, device) for value in values])
    if group is not None:
        torch.distributed.all_reduce(total, group=group)
    return total


def _scalar(value: Any, dtype: Any, device: Any) -> Any:
    """Return a number or a scalar tensor as a scalar tensor on a device, without waiting for the device.

    Copying a Python number to a GPU would wait; `torch.full` does not.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype, non_blocking=True).reshape(())
    return torch.full((), float(value), dtype=dtype, device=device)


def norm_of(gradients: Iterable[Any], device: Any, stages: Any) -> Any:
    """Return the Euclidean norm of all gradients of the whole model: a scalar tensor, the same on all ranks.

    Args:
        gradients: Tensors or DTensors of this rank.
        device: The device of the norm.
        stages: Process group of the ranks with the other pipeline stages; None without pp.
    """
    import torch

    over: dict[tuple[Any, ...], list[Any]] = defaultdict(list)  # keyed by the groups of ranks that hold the other parts
    for gradient in gradients:
        groups, local = ((), gradient) if type(gradient) is torch.Tensor else _held(gradient)
        over[groups].append(local)
    squared = torch.zeros((), dtype=torch.float32, device=device)
    for groups, parts in over.items():
        own = torch.nn.utils.get_total_norm(parts).float() ** 2
        for group in groups:
            torch.distributed.all_reduce(own, group=group)
        squared = squared + own
    if stages is not None:
        torch.distributed.all_reduce(squared, group=stages)
    return squared.sqrt()


def _held(gradient: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the process groups that hold the other parts of a gradient, and this rank's part."""
    placements = getattr(gradient, "placements", ())
    if any(placement.is_partial() for placement in placements):
        return (), gradient.full_tensor()
    split = [axis for axis, placement in enumerate(placements) if not placement.is_replicate()]
    groups = tuple(gradient.device_mesh.get_group(axis) for axis in split)
    return groups, getattr(gradient, "_local_tensor", gradient)


def is_one(factor: Any) -> bool:
    """Return whether a factor is the Python number 1.

    The result is False for all tensors, because reading the value of a tensor would make the host wait for the GPU.
    """
    return isinstance(factor, float) and factor == 1.0


def inverse(factor: Any) -> Any:
    """Return 1 / factor, or 1 for a factor of 0, with which all gradients are 0."""
    return 1 / factor if isinstance(factor, float) else (1 / factor).where(factor != 0, 1.0)


def multiply(gradients: Sequence[Any], factor: Any) -> None:
    """Multiply this rank's gradients in place.

    Args:
        gradients: Tensors or DTensors.
        factor: A number or a scalar tensor.
    """
    import torch

    if is_one(factor):
        return
    kinds: dict[Any, list[Any]] = defaultdict(list)
    for gradient in gradients:
        local = gradient if type(gradient) is torch.Tensor else getattr(gradient, "_local_tensor", gradient)
        kinds[local.dtype, local.device].append(local)
    for (dtype, device), group in kinds.items():
        torch._foreach_mul_(group, factor if isinstance(factor, float) else _scalar(factor, dtype, device))
