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
from paceline.train.world import World


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
    """Yield names and tensors of the whole model, in host memory on rank 0; nothing on other ranks."""
    import torch

    group = world.group("pp")
    names = [list(held.state_dict())]
    stages: list[Any] = [None] * (1 if group is None else torch.distributed.get_world_size(group))
    if group is None:
        stages = names
    else:
        torch.distributed.all_gather_object(stages, names[0], group=group)
    own = held.state_dict()
    for stage, of_stage in enumerate(stages):
        for name in of_stage:
            value = full(own[name]) if name in own and hasattr(own[name], "detach") else own.get(name)
            if group is not None:
                box = [value.cpu() if hasattr(value, "cpu") else value]
                torch.distributed.broadcast_object_list(box, torch.distributed.get_global_rank(group, stage), group)
                value = box[0]
            if world.rank == 0 and hasattr(value, "cpu"):
                yield name, value.cpu().contiguous().clone()
