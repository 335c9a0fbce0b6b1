"""State dicts of models that are split over ranks: whole ones can be loaded, and parts cannot be saved by mistake.

With shard and tp, a rank has a part of each parameter, and with pp some of the parameters. If a program calls
`model.load_state_dict()` with whole tensors, each rank keeps its part. If a program calls `torch.save()`, the file
would have only the part of one rank; the call raises a `UsageError`.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Collection, Iterator
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.inprocess import hooks

_OF_CHECKPOINTS = "torch.distributed.checkpoint"  # writes the parts of all ranks
_stages: weakref.WeakSet[Any] = weakref.WeakSet()  # modules with the layers of some pipeline stages


def part_of(target: Any, value: Any) -> Any:
    """Return this rank's part of a whole tensor.

    Args:
        target: A tensor that is split over ranks.
        value: A whole tensor of the same shape.

    Returns:
        A view of `value`, of the shape of the local tensor of `target`.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, begins = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    return value[tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))]


def split_when_loaded(held: Any, names: Collection[str]) -> None:
    """Make `held.load_state_dict()` take the state dict of the whole model.

    Args:
        held: The module with the parameters of this rank.
        names: The names in the state dict of the whole model.
    """
    elsewhere = set(names) - set(held.state_dict())

    def skip(module: Any, state: Any, prefix: str, *_: Any) -> None:
        for name in [name for name in state if name.removeprefix(prefix) in elsewhere]:
            del state[name]

    held.register_load_state_dict_pre_hook(skip)
    for each in held.modules():
        each.register_load_state_dict_pre_hook(_split)


def _split(module: Any, state: Any, prefix: str, *_: Any) -> None:
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        is_whole = hasattr(value, "ndim") and not hasattr(value, "placements")
        if is_whole and hasattr(parameter, "placements") and value.shape == parameter.shape:
            state[prefix + name] = _split_like(parameter, value)


def _split_like(target: Any, value: Any) -> Any:
    """Return a whole tensor, split over ranks as another tensor is."""
    from torch.distributed.tensor import DTensor

    own = part_of(target, value.detach()).to(target.device).contiguous()
    return DTensor.from_local(
        own, target.device_mesh, target.placements, run_check=False, shape=target.shape, stride=target.stride()
    )


def refuse_to_save_parts(held: Any, layout: Layout) -> None:
    """Patch `torch.save`: it raises a UsageError if it would write only the part of a model that this rank has.

    Args:
        held: The module with the parameters of this rank.
        layout: A layout with shard, tp or pp, for the message.
    """
    import torch

    if layout.pp > 1:
        _stages.add(held)
    if "torch.save" in hooks.installed():
        return
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if not caller.startswith(_OF_CHECKPOINTS) and any(map(_is_part, _tensors(obj))):
            raise UsageError(
                f"layout {layout}: torch.save() would write only the part of the model that this rank has. Call "
                "engine.export(path) on all ranks to write the whole model, or engine.save(folder) to continue "
                "training from it"
            )
        return original(obj, *args, **kwargs)

    hooks.install(torch, "save", save)


def _tensors(value: Any) -> Iterator[Any]:
    from torch import nn
    from torch.utils import _pytree

    for leaf in _pytree.tree_leaves(value):
        if isinstance(leaf, nn.Module):
            yield from leaf.parameters()
        elif hasattr(leaf, "untyped_storage"):
            yield leaf


def _is_part(tensor: Any) -> bool:
    """Return whether a tensor is split over ranks, or a parameter of a pipeline stage."""
    if hasattr(tensor, "placements"):
        return any(not placement.is_replicate() for placement in tensor.placements)
    memory = tensor.untyped_storage().data_ptr()
    parameters = (parameter for stage in _stages for parameter in stage.parameters())
    return any(memory == each.untyped_storage().data_ptr() for each in parameters if not hasattr(each, "placements"))
