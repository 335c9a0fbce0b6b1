"""Values and gradients of the split model as the whole model has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.train.world import World


def give_values(held: Any, whole: Any, world: World) -> None:
    """Give the whole model the values of the split one; a collective of all ranks.

    Args:
        held: What this rank holds of the split model, under the names of the whole one.
        whole: The copy.
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
    """Return the rank of the stage that holds each tensor; empty without pp."""
    import torch

    if group is None:
        return {}
    every: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(every, list(of_held), group=group)
    return {
        name: int(torch.distributed.get_global_rank(group, number)) for number, own in enumerate(every) for name in own
    }


def full(value: Any) -> Any:
    """Return the whole of a tensor that is split over ranks; a collective of these."""
    found = value.detach()
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    return found.to_dense() if found.is_sparse else found


def gradients(held: Any, averaged_over: Any, factor: Any) -> Iterator[tuple[str, Any]]:
    """Yield the gradients of a step of the split model, by names of the whole one; a collective.

    Args:
        held: What this rank holds, after backward.
        averaged_over: Group over which gradients are still to be averaged, as DDP does; None where they are.
        factor: What gradients are multiplied by at the end of a step.
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
    """Sum the gradients of the whole model over ranks with other samples."""
    import torch

    for parameter in whole.parameters():
        if parameter.requires_grad and group is not None:
            found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
            torch.distributed.all_reduce(found, group=group)
            parameter.grad = found
