"""Parameters, buffers and gradients of the split model, joined over ranks to tensors of the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from paceline.train.ranks.world import World

_BUCKET_BYTES = 32 << 20  # of gradients that travel in one exchange


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


def gradients(held: Any, averaged_over: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and gradients of a step of the split model, by the names of the whole model; a collective.

    Args:
        held: The part of the model on this rank, after backward.
        averaged_over: Process group over which gradients still have to be averaged, as with DDP; None if they are
            averaged already.
    """
    import torch

    named = [(name, parameter) for name, parameter in held.named_parameters() if parameter.requires_grad]
    found = (full(torch.zeros_like(each) if each.grad is None else each.grad) for _, each in named)
    if averaged_over is not None:
        ranks = torch.distributed.get_world_size(averaged_over)
        found = (value / ranks for value in _sums(found, averaged_over))
    yield from ((name, value) for (name, _), value in zip(named, found, strict=True))


def summed(whole: Any, group: Any) -> None:
    """Sum the gradients of the whole model over ranks with different samples, in place."""
    import torch

    if group is None:
        return
    parameters = [parameter for parameter in whole.parameters() if parameter.requires_grad]
    own = (torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in parameters)
    for parameter, found in zip(parameters, _sums(own, group), strict=True):
        parameter.grad = found


def _sums(values: Iterable[Any], group: Any) -> Iterator[Any]:
    """Yield the sum over ranks of each tensor, in order; tensors travel together, as each exchange takes time."""
    import torch

    def exchanged(bucket: list[Any]) -> Iterator[Any]:
        together = torch.cat([value.reshape(-1) for value in bucket])
        torch.distributed.all_reduce(together, group=group)
        parts = together.split([value.numel() for value in bucket])
        return (part.view(value.shape) for part, value in zip(parts, bucket, strict=True))

    bucket: list[Any] = []
    for value in values:
        alike = not bucket or (value.dtype, value.device) == (bucket[0].dtype, bucket[0].device)
        if not alike or sum(each.nbytes for each in bucket) + value.nbytes > _BUCKET_BYTES:
            yield from exchanged(bucket) if bucket else ()
            bucket = []
        bucket.append(value)
    yield from exchanged(bucket) if bucket else ()
