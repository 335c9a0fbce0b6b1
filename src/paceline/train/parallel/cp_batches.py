"""Refuses training loops that cut, move or reduce a batch along its positions, with `cp`.

A rank has a part of each sequence. A loop that uses `tokens[:, :-1]` or `tokens.roll(-1, 1)` changes each part, where
one process changes the whole sequence. Methods of tensors that work along one dimension are patched: used on a tensor
of the current batch, they raise an error. In a forward pass, in torch and in Paceline, they work as before.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.inprocess import hooks
from paceline.train.parallel import cp

_MOVING = ("roll", "flip", "narrow", "cumsum", "cumprod", "sort", "argsort", "diff", "chunk", "split", "unbind")
_REDUCING = ("sum", "mean", "any", "all", "amax", "amin", "argmax", "argmin", "max", "min", "prod", "std", "var")
_FUNCTIONS = ("roll", "flip", "cumsum", "sum", "mean", "diff", "sort")  # of the module torch
_SECOND = ("roll", "chunk", "split")  # their first argument is no dimension
_BY_DEFAULT = ("cumsum", "sort", "argsort", "diff")  # without a dimension they work along the last one
_batch: list[Any] = []  # the tensors [batch, length, ...] of the current batch


def note_batch(batch: Any) -> None:
    """Store the tensors of the batch that the loader yields next.

    Args:
        batch: The batch, with this rank's part of each sequence.
    """
    from torch.utils import _pytree

    _batch[:] = [leaf for leaf in _pytree.tree_leaves(batch) if getattr(leaf, "ndim", 0) > 1]


def patch(layout: Layout) -> None:
    """Patch the methods of tensors that work along one dimension.

    Args:
        layout: The layout of the run, for messages.
    """
    import torch

    if "torch.Tensor.__getitem__" in hooks.installed():
        return
    for name in ("__getitem__", *_MOVING, *_REDUCING):
        hooks.install(torch.Tensor, name, _checked(getattr(torch.Tensor, name), name, layout))
    for name in _FUNCTIONS:
        hooks.install(torch, name, _checked(getattr(torch, name), name, layout))


def _checked(original: Any, name: str, layout: Layout) -> Any:
    """Return a method that raises a UsageError if the training loop uses it along the positions of the batch."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if args and _is_in_loop(sys._getframe(1)) and _is_of_batch(args[0]) and _is_along_positions(name, args, kwargs):
            what = "an index" if name == "__getitem__" else f"{name}()"
            raise UsageError(
                f"{layout}: the training loop uses {what} along the positions of a batch. With cp, a rank has a part "
                "of each sequence, so each part would be cut, moved or reduced. Do this in the data set or its "
                "collate_fn, before the batch is split, or use shard or tp in place of cp. To train without this "
                "check, set first_step = false in the section [checks] of the recipe"
            )
        return original(*args, **kwargs)

    return functools.wraps(original)(checked)


def _is_in_loop(caller: Any) -> bool:
    """Return whether a stack frame is of the training loop: not in a forward pass, in torch or in Paceline."""
    name = str(caller.f_globals.get("__name__", ""))
    return bool(_batch) and not cp.is_running() and not name.startswith(("torch.", "paceline."))


def _is_of_batch(value: Any) -> bool:
    """Return whether a tensor is one of the current batch, or has some of its samples."""
    if value.ndim < 2:
        return False
    memory = value.untyped_storage().data_ptr()
    return any(value.shape[1:] == each.shape[1:] and memory == each.untyped_storage().data_ptr() for each in _batch)


def _is_along_positions(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a method of a tensor [batch, length, ...] works along the positions.

    Args:
        name: The name of the method.
        args: The tensor and the other positional arguments.
        kwargs: The named arguments.
    """
    from torch.utils import _pytree

    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else ()
        of_positions = index[1] if len(index) > 1 and isinstance(index[0], int | slice) else slice(None)
        return isinstance(of_positions, int) or isinstance(of_positions, slice) and of_positions != slice(None)
    named = [kwargs[key] for key in ("dim", "dims", "axis") if key in kwargs]
    given = args[2:] if name in _SECOND else args[1:2] if name == "narrow" else args[1:]
    dims = _pytree.tree_leaves(named or given) or ([-1] if name in _BY_DEFAULT else [])
    return any(dim in (1, 1 - args[0].ndim) and not isinstance(dim, bool) for dim in dims)
