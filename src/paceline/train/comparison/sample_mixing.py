"""Reports training loops that combine the samples of a batch, with ranks that have different samples.

A loop that mixes samples (`x * lam + x.flip(0) * (1 - lam)`) or normalizes a batch by its own mean uses the samples of
one rank, where one process uses those of the whole batch. While the first batches are processed, methods of tensors
that work along the samples are replaced by functions that look at their caller. One line on stderr names the first such
line of the program.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.core.layout import Layout

_BATCHES = 4  # the number of batches of an engine that are watched
_MOVING = ("flip", "roll", "index_select")
_REDUCING = ("mean", "std", "var", "amax", "amin", "max", "min", "median", "quantile", "softmax", "cumsum", "norm")
_watching: list[SampleMixing] = []
_batch: list[Any] = []  # the tensors of the current batch
_originals: dict[tuple[Any, str], Any] = {}  # the functions that are replaced at the moment, by owner and name


class SampleMixing:
    """Watches what the training loop does with the first batches of an engine.

    Args:
        layout: The layout of the run.
        is_on: Whether ranks have different samples, and the recipe allows the check.
    """

    def __init__(self, layout: Layout, *, is_on: bool) -> None:
        self._layout, self._left = layout, _BATCHES if is_on else 0

    @contextmanager
    def watched(self, batch: Any) -> Iterator[None]:
        """Report the first call inside the context that combines or reorders the samples of the batch."""
        from torch.utils import _pytree

        if not self._left:
            yield
            return
        self._left -= 1
        _watching.append(self)
        _batch[:] = [leaf for leaf in _pytree.tree_leaves(batch) if getattr(leaf, "ndim", 0)]
        _replace_methods()
        try:
            yield
        finally:
            _watching.remove(self)
            _batch.clear()
            if not _watching:
                _restore_methods()

    def report(self, name: str, caller: Any) -> None:
        """Print the name of a method and the line that called it, and stop watching."""
        self._left = 0
        what = "an index" if name == "__getitem__" else f"{name}()"
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        sys.stderr.write(
            f"paceline: layout {self._layout}: the training loop uses {what} over the samples of a batch ({place}). "
            "Each rank has only its part of the samples, so the result differs from that of one process. To use all "
            "samples of a batch, do this in the collate_fn of the DataLoader\n"
        )


def _replace_methods() -> None:
    import torch

    if _originals:
        return
    for name in ("__getitem__", *_MOVING, *_REDUCING):
        for owner in (torch.Tensor, torch):
            if hasattr(owner, name):
                _originals[owner, name] = original = getattr(owner, name)
                setattr(owner, name, _watched(original, name))


def _restore_methods() -> None:
    for (owner, name), original in _originals.items():
        if getattr(vars(owner).get(name), "is_watching", False):  # keep a patch that the program has made since
            setattr(owner, name, original)
    _originals.clear()


def _watched(original: Any, name: str) -> Any:
    """Return a function that calls `original`, and reports its caller if it combines or reorders samples."""

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if _batch and args and _is_mixing(name, args, kwargs):
            caller = sys._getframe(1)
            if _is_loop(caller):
                _watching[-1].report(name, caller)
                _batch.clear()
        return original(*args, **kwargs)

    vars(watched)["is_watching"] = True
    return watched


def _is_mixing(name: str, args: Sequence[Any], kwargs: Any) -> bool:
    """Return whether a call of a method combines or reorders the samples of the current batch.

    Reductions of integers and booleans, such as the largest length or the sum of a mask, do not count: programs use
    them as weights of the loss.
    """
    import torch

    value = args[0]
    if type(value) is not torch.Tensor or not value.ndim:  # others may have no memory of their own
        return False
    if name in _REDUCING:
        return value.is_floating_point() and _is_of_batch(value) and 0 in _dimensions(value, args[1:], kwargs)
    if not _is_of_batch(value) and not any(value.shape == each.shape and value.ndim > 1 for each in _batch):
        return False
    if name == "__getitem__":
        return _is_order(args[1], len(value))
    given = args[2:] if name == "roll" else args[1:2] if name == "index_select" else args[1:]
    return 0 in _dimensions(value, given, kwargs)


def _dimensions(value: Any, given: Sequence[Any], kwargs: Any) -> set[int]:
    """Return the dimensions along which a method works; all of them without an argument."""
    from torch.utils import _pytree

    named = [kwargs[key] for key in ("dim", "dims", "axis") if key in kwargs]
    dims = [each for each in _pytree.tree_leaves(named or list(given)) if type(each) is int]
    return {dim % value.ndim for dim in dims} if dims else {*range(value.ndim)}


def _is_of_batch(value: Any) -> bool:
    """Return whether a tensor shares memory with a tensor of the current batch."""
    memory = value.untyped_storage().data_ptr()
    return any(memory == each.untyped_storage().data_ptr() for each in _batch)


def _is_order(index: Any, samples: int) -> bool:
    """Return whether an index reorders the samples: a list or tensor with one whole number for each sample."""
    first = index[0] if isinstance(index, tuple) and index else index
    if isinstance(first, list):
        return len(first) == samples and all(type(each) is int for each in first)
    is_whole = hasattr(first, "dtype") and str(first.dtype).rpartition(".")[2] in ("int64", "int32")
    return is_whole and getattr(first, "ndim", 0) == 1 and len(first) == samples


def _is_loop(frame: Any) -> bool:
    """Return whether code of the training loop called a function, not a forward pass, torch or Paceline."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(("torch.", "paceline.")):
            return False
        frame = frame.f_back
    return True
