"""Writes the whole model as one state dict to one file, from any layout: safetensors, or torch's own format.

Tensors have the names of the model before it was split, are put together one after the other, and written by rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.files import replacing
from paceline.train.checkpoints.tensor_files import SUFFIXES, write_tensors
from paceline.train.comparison.synced import full
from paceline.train.ranks.agreement import bytes_of
from paceline.train.ranks.world import World


def export(held: Any, world: World, path: Path) -> None:
    """Write the parameters and buffers of a whole model; a collective of all ranks.

    Args:
        held: The part of the model on this rank, with the names of the whole model.
        world: The ranks.
        path: Ends in .safetensors, .pt, .pth or .bin.

    Raises:
        UsageError: The path has another ending, or safetensors cannot store the type of a tensor.
    """
    import torch

    if path.suffix not in SUFFIXES:
        raise UsageError(f"export to {path.name}: the name must end in {', '.join(SUFFIXES)}")
    state = dict(_whole(held, world))
    if world.rank == 0:
        with replacing(path) as part:
            write_tensors(state, part, path.suffix)
    if world.mesh is not None:
        torch.distributed.barrier()


def _whole(held: Any, world: World) -> Iterator[tuple[str, Any]]:
    """Yield names and tensors of the whole model, in host memory on rank 0; elsewhere nothing."""
    own = {name: value for name, value in held.state_dict().items() if hasattr(value, "detach")}  # no extra state
    group = world.group("pp")
    stages = _tensors_of_stages(own, group)
    for name, value in own.items():
        gathered = full(value)
        if world.rank == 0:
            yield name, gathered.cpu().contiguous().clone()
        elif stages is not None:
            _send(gathered, group)
    if world.rank == 0 and group is not None:
        for stage, tensors in enumerate(stages[1:], 1):
            for name, shape, dtype in tensors:
                yield name, _received((shape, dtype, world.device), stage, group).cpu()


def _tensors_of_stages(own: dict[str, Any], group: Any) -> Any:
    """Return name, shape and data type of the tensors of each stage on rank 0; None where rank 0 gets none.

    Args:
        own: The tensors of this rank's stages.
        group: The ranks with the other stages; None without pp. Names go to rank 0 only.
    """
    import torch

    if group is None or torch.distributed.get_global_rank(group, 0) != 0:
        return None
    listed = [(name, tuple(value.shape), value.dtype) for name, value in own.items()]
    every: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.gather_object(listed, every if torch.distributed.get_rank() == 0 else None, 0, group)
    return every


def _send(value: Any, group: Any) -> None:
    """Send a tensor to rank 0, as `_received` takes it."""
    import torch

    if value.numel():
        torch.distributed.send(bytes_of(value), 0, group)


def _received(form: tuple[Any, Any, Any], stage: int, group: Any) -> Any:
    """Return a tensor of another stage on rank 0.

    Args:
        form: Shape, data type and device.
        stage: Its position in the pipeline.
        group: The ranks of the pipeline.
    """
    import torch

    found = torch.empty(form[0], dtype=form[1], device=form[2])
    if found.numel():
        source = torch.distributed.get_global_rank(group, stage)
        torch.distributed.recv(found.view(-1).view(torch.uint8), source, group)
    return found
