"""Checks that ranks with the same parameters have the same gradients and values, in some of the steps.

With `dp`, all ranks take the same optimizer step from the same averaged gradients. Gradients differ if the loss was not
computed by a call of the module that `setup` returned. Values differ if something outside of the model changes them in
another way on each rank, such as random numbers in the training loop. The ranks compare the sum and the norm of each
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.comparison.advice import OFF
from paceline.train.ranks.world import World

_EVERY = 64  # steps between two checks; before that, steps 1, 2, 4, 8 and so on are checked
_TOLERANCE = 1e-6  # of sums and norms, relative to the norm
_GRADIENT = (
    "the gradient of {name} differs between the ranks after backward. Compute the loss from the module that setup() "
    "returned, with one call of it before each backward(), and change gradients in the same way on all ranks"
)
_VALUE = (
    "the values of {name} differ between the ranks after this step, because something outside of the model changed "
    "them, such as random numbers in the training loop. Draw such numbers from a torch.Generator that has the same "
    "seed on all ranks"
)


class ReplicaCheck:
    """Compares the parameters of a model between the ranks that hold the same ones."""

    def __init__(self, world: World, model: Any) -> None:
        """Store the arguments.

        Args:
            world: The ranks.
            model: The module with the parameters of this rank.
        """
        self._world, self._model = world, model
        self._steps = 0  # since `setup`

    def before_step(self) -> None:
        """Compare gradients before an optimizer step; a collective of all ranks.

        Raises:
            UsageError: A gradient differs.
        """
        self._steps += 1
        self._compare(_GRADIENT, lambda parameter: parameter.grad)

    def after_step(self) -> None:
        """Compare values after an optimizer step; a collective of all ranks.

        Raises:
            UsageError: A value differs.
        """
        self._compare(_VALUE, lambda parameter: parameter)

    def _compare(self, message: str, tensor_of: Callable[[Any], Any]) -> None:
        if self._steps & (self._steps - 1) if self._steps < _EVERY else self._steps % _EVERY:
            return
        for group, named in self._groups().items():
            tensors = [(name, tensor_of(each)) for name, each in named if tensor_of(each) is not None]
            name = _first_difference(tensors, group, self._world)
            if name is not None:
                said = message.format(name=name)
                raise UsageError(f"{self._world.layout}, step {self._steps} after setup(): {said}. {OFF}")

    def _groups(self) -> dict[Any, list[tuple[str, Any]]]:
        """Return the parameters by the process group of the ranks that hold the same values."""
        found: dict[Any, list[tuple[str, Any]]] = {}
        for name, parameter in self._model.named_parameters():
            for group in _groups_of(parameter, self._world):
                found.setdefault(group, []).append((name, parameter))
        return found


def _groups_of(parameter: Any, world: World) -> Iterator[Any]:
    if not hasattr(parameter, "placements"):
        if world.data_group is not None:
            yield world.data_group
        return
    for axis, placement in enumerate(parameter.placements):
        if placement.is_replicate() and parameter.device_mesh.size(axis) > 1:
            yield parameter.device_mesh.get_group(axis)


def _first_difference(named: list[tuple[str, Any]], group: Any, world: World) -> str | None:
    """Return the name of the first tensor whose sum or norm differs between the ranks of a group."""
    import torch

    if not named:
        return None
    tensors = [_plain(each).detach() for _, each in named]
    norms = torch.stack([each.float().norm() for each in tensors]).double()
    sums = torch.stack([each.sum(dtype=torch.float32) for each in tensors]).double()
    both = torch.cat([norms, sums]).to(world.device).nan_to_num(0.0, 0.0, 0.0)
    ranges = torch.cat([both, -both])
    torch.distributed.all_reduce(ranges, torch.distributed.ReduceOp.MAX, group=group)
    most, least = ranges.chunk(2)
    limit = _TOLERANCE * (most[: len(named)] * torch.tensor([each.numel() ** 0.5 for each in tensors]).to(most))
    differs = (most + least) > torch.cat([_TOLERANCE * most[: len(named)], limit])
    first = next((number for number, each in enumerate(differs.tolist()) if each), None)
    return None if first is None else named[first % len(named)][0]


def _plain(tensor: Any) -> Any:
    """Return this rank's part of a tensor as real numbers."""
    import torch

    local = getattr(tensor, "_local_tensor", tensor)
    return torch.view_as_real(local) if local.is_complex() else local
