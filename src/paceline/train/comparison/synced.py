"""Parameters, buffers and gradients of the split model, joined over ranks to tensors of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.train.world import World


def give_values(held: Any, whole: Any, world: World) -> None:
    """Copy parameters and buffers of the split model to the whole model; a collective of all ranks.

    Args:
        held: The part of the split model on this rank, with the names of the whole model.
        whole: The copy of the whole model, changed in place.
        world: The ranks.
    """
    import torch

    of_held = {**dict(held.named_parameters(remove_duplicate=False)), **dict(held.named_buffers())}
    group = world.group("pp")
    owners = _owners(of_held, group)
    seen: set[int] = set()
    with torch.no_grad():
        for name, value in [*whole.named_parameters(), *whole.named_buffers()]:
            if id(value) in seen or (name not in of_held and name not in owners):
                continue
            seen.add(id(value))
            if name in of_held:
                value.copy_(full(of_held[name]))
            if group is not None:
                torch.distributed.broadcast(value, owners[name], group=group)


def _owners(of_held: dict[str, Any], group: Any) -> dict[str, int]:
    """Return, for each tensor name, the rank of the pipeline stage that holds it; empty without pp."""
    import torch

    if group is None:
        return {}
    every: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(every, list(of_held), group=group)
    return {
        name: int(torch.distributed.get_global_rank(group, number)) for number, own in enumerate(every) for name in own
    }


def full(value: Any) -> Any:
    """Return the full, dense tensor of a tensor that can be split over ranks; a collective of these ranks."""
    found = value.detach()
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    return found.to_dense() if found.is_sparse else found


def gradients(held: Any, averaged_over: Any, factor: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and gradients of a step of the split model, by the names of the whole model; a collective.

    Args:
        held: The part of the model on this rank, after backward.
        averaged_over: Process group over which gradients still have to be averaged, as with DDP; None if they are
            averaged already.
        factor: The factor by which gradients are multiplied at the end of a step.
    """
    import torch

    for name, parameter in held.named_parameters():
        if not parameter.requires_grad:
            continue
        found = full(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        if averaged_over is not None:
            found = found.clone()
            torch.distributed.all_reduce(found, group=averaged_over)
            found = found / torch.distributed.get_world_size(averaged_over)
        yield name, found * factor


def summed(whole: Any, group: Any) -> None:
    """Sum the gradients of the whole model over ranks with different samples, in place."""
    import torch

    for parameter in whole.parameters():
        if parameter.requires_grad and group is not None:
            found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
            torch.distributed.all_reduce(found, group=group)
            parameter.grad = found
