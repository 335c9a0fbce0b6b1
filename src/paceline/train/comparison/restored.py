"""Restores a model, its attributes and the random numbers of the ranks after the comparison.

Constant trainable parameters, such as a bias of zeros or a norm's weight of ones, get noise during the comparison;
otherwise errors in them, or in values that they multiply, would not show. The noise of a parameter depends on the name
of the parameter and on the part of it that this rank holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.train.comparison import function_state
from paceline.train.ranks import random_states
from paceline.train.ranks.world import World

_NOISE = 0.1
_TORCHS = ("_parameters", "_buffers", "_modules", "training")  # attributes that torch keeps itself


@contextmanager
def restored(models: Sequence[Any], world: World) -> Iterator[None]:
    """Restore buffers, gradients, attributes of modules and random numbers when the context ends."""
    import torch

    drawn = random_states.of_torch(world.device), random_states.of_host()
    streams = {name: stream.state for name, stream in world.streams.items()}
    parts = {id(part): part for model in models for part in model.modules()}.values()
    buffers = [(buffer, buffer.clone()) for part in parts for buffer in part.buffers(recurse=False)]
    attributes = [(part, {name: value for name, value in vars(part).items() if not _is_torchs(name)}) for part in parts]
    values = [value for _, own in attributes for value in own.values()]
    try:
        with function_state.kept(values, models):
            yield
    finally:
        for part, own in attributes:
            for name in [name for name in vars(part) if not _is_torchs(name) and name not in own]:
                del vars(part)[name]
            vars(part).update(own)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        random_states.put({**drawn[0], **drawn[1]}, world.device)
        for name, state in streams.items():
            world.streams[name].state = state
        for model in models:
            for parameter in model.parameters():
                parameter.grad = None


def _is_torchs(name: str) -> bool:
    return name in _TORCHS or "hook" in name or "fsdp" in name.lower() or name.startswith("__")


@contextmanager
def varied(model: Any) -> Iterator[None]:
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
