"""Contexts that restore models, losses and random numbers after a comparison.

Constant trainable parameters, such as a bias of zeros or a norm's weight of ones, get noise during the comparison;
otherwise errors in them, or in values that they multiply, would not show. The noise of a parameter depends on the name
of the parameter and on the part of it that this rank holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.train.ranks import random_states
from paceline.train.ranks.world import World
from paceline.train.unmodified.snapshot import Snapshot, copy_value

_NOISE = 0.1


@contextmanager
def restore_models(models: Sequence[Any], world: World) -> Iterator[None]:
    """Restore the state of models and the random numbers when the context ends, and set gradients to None."""
    drawn = random_states.of_torch(world.device), random_states.of_host()
    streams = {name: stream.state for name, stream in world.streams.items()}
    parameters = [parameter for model in models for parameter in model.parameters()]
    try:
        with restore_state(models, ignored=parameters):
            yield
    finally:
        random_states.put({**drawn[0], **drawn[1]}, world.device)
        for name, state in streams.items():
            world.streams[name].state = state
        for parameter in parameters:
            parameter.grad = None


@contextmanager
def restore_state(objects: Sequence[Any], ignored: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Restore all values that objects refer to, and the gradients of tensors among them, when the context ends.

    Args:
        objects: Models or functions. A function refers to the variables that it uses.
        ignored: Tensors and objects that are not restored.

    Yields:
        A dict. When the context ends, it gets copies of the changed values, by name.
    """
    import torch

    snapshot, changed = Snapshot(torch, objects[0], objects[1:], ignored), dict[str, Any]()
    leaves = [tensor for tensor in snapshot.tensors() if tensor.is_leaf and tensor.requires_grad]
    gradients = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
    try:
        yield changed
    finally:
        changed.update({name: copy_value(torch, place.get()) for name, place in snapshot.changed().items()})
        snapshot.restore()
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient


@contextmanager
def add_noise(model: Any) -> Iterator[None]:
    """Add noise to parameters whose elements are all equal, and restore their value when the context ends."""
    import torch

    constants = [(name, _local(value), _local(value).flatten()[:1].clone()) for name, value in _constants(model)]
    parts = {name: _part_of(value) for name, value in model.named_parameters()}
    with torch.no_grad():
        for name, values, _ in constants:
            seed = random_states.mixed("noise", name, parts[name])
            noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
            values.add_((noise * _NOISE).to(values) * torch.where(values == 0, 1.0, values))
    try:
        yield
    finally:
        with torch.no_grad():
            for _, values, constant in constants:
                values.copy_(constant.expand(values.numel()).view(values.shape))


def _constants(model: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in model.named_parameters():
        values = _local(parameter)
        if (
            parameter.requires_grad
            and values.is_floating_point()
            and values.numel()
            and bool((values == values.flatten()[0]).all())
        ):
            yield name, parameter


def _local(parameter: Any) -> Any:
    return getattr(parameter, "_local_tensor", parameter).detach()


def _part_of(parameter: Any) -> tuple[int, ...]:
    """Return which part of a parameter this rank holds: its indices on the mesh axes that split the parameter."""
    places = getattr(parameter, "placements", ())
    mesh: Any = getattr(parameter, "device_mesh", None)
    return tuple(mesh.get_local_rank(axis) for axis, each in enumerate(places) if not each.is_replicate())
