"""Writes the whole model as one state dict to one file, from any layout: safetensors, or torch's own format.

Tensors have the names of the model before it was split. They are gathered one after the other, and rank 0
writes them. A safetensors file consists of the length of a JSON header (8 bytes, little endian), the header
with type, shape and offset of each tensor, and the data (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.files import replacing
from paceline.train.comparison.synced import full
from paceline.train.world import World

_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
_TORCHS = (".pt", ".pth", ".bin")


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

    if path.suffix not in (".safetensors", *_TORCHS):
        raise UsageError(f"export to {path.name}: the name must end in .safetensors, {', '.join(_TORCHS)}")
    state = dict(_whole(held, world))
    if world.rank == 0:
        with replacing(path) as part:
            if path.suffix in _TORCHS:
                with part.open(
                    "wb"
                ) as file:  # with a file instead of a path, the archive does not contain the file's name
                    torch.save(state, file)
            else:
                _write(state, part)
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


def _write(state: dict[str, Any], path: Path) -> None:
    """Write a safetensors file."""
    import torch

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, value in state.items():
        kind = _TYPES.get(str(value.dtype).removeprefix("torch."))
        if kind is None:
            raise UsageError(
                f"export: {name} has data type {value.dtype}, which safetensors cannot store; export to a .pt file"
            )
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [end, end + value.nbytes]}
        end += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in state.values():
            file.write(value.reshape(-1).view(torch.uint8).numpy().tobytes())
