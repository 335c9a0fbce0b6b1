"""Refuses statistics that a model outside of the engine computes from the samples of one rank.

The engine's models compute the statistics of BatchNorm over the samples of all ranks (`batch_norm.py`). Another model
that the training loop calls, such as a teacher, would use the samples of its rank only. While a batch is processed,
`batch_norm` and `instance_norm` of `torch.nn.functional` are therefore replaced by functions that check their caller.
A model of the engine is compared with one process as a whole, so its own calls of these functions are allowed.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.inprocess import hooks
from paceline.train.comparison.advice import statistics_message

_known: WeakSet[Any] = WeakSet()  # all modules of the models of engines, and of the copies for the comparison
_processing: dict[tuple[int, str], Layout] = {}  # layouts of the engines that process a batch
_originals: dict[str, Any] = {}  # the functions of torch that are replaced at the moment


class StatisticsCheck:
    """Refuses statistics of models that no engine trains, while an engine processes a batch."""

    def __init__(self, layout: Layout, *, is_on: bool) -> None:
        """Store the arguments.

        Args:
            layout: The layout of the run.
            is_on: Whether ranks have different samples, and the recipe allows the check.
        """
        self._layout, self._is_on = layout, is_on

    def know(self, models: Iterable[Any]) -> None:
        """Allow the calls of these models and of their parts."""
        _known.update(part for model in models for part in model.modules())

    @contextmanager
    def active(self, reason: str) -> Iterator[None]:
        """Check the models that are called inside the context, or until `end` is called with the same reason."""
        if self._is_on:
            _processing[id(self), reason] = self._layout
            _replace_functions()
        try:
            yield
        finally:
            self.end(reason)

    def end(self, reason: str) -> None:
        """End the check that `active` started for a reason, if it has not ended."""
        _processing.pop((id(self), reason), None)
        if not _processing:
            _restore_functions()


def _replace_functions() -> None:
    from torch.nn import functional

    for name, mixes in (("batch_norm", _batch_norm_mixes), ("instance_norm", _instance_norm_mixes)):
        if name not in _originals:
            _originals[name] = getattr(functional, name)
            hooks.install(functional, name, _checked(_originals[name], mixes))


def _restore_functions() -> None:
    from torch.nn import functional

    for name, original in _originals.items():
        if getattr(getattr(functional, name), "__wrapped__", None) is original:  # else the program has replaced it
            setattr(functional, name, original)
    _originals.clear()


@functools.cache
def _checked(original: Callable[..., Any], mixes: Callable[[dict[str, Any], Any], bool]) -> Callable[..., Any]:
    """Return a function of torch with a check of its caller, if a call mixes samples."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def checked(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        caller = sys._getframe(1)
        if mixes(bound.arguments, caller):
            _check_caller(original.__name__, caller)
        return original(*args, **kwargs)

    return checked


def _batch_norm_mixes(given: dict[str, Any], caller: Any) -> bool:
    """Return whether a call computes statistics over samples. Weight standardization calls it with a single row."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return given["training"] and (given["input"].shape[0] > 1 or caller.f_code is _BatchNorm.forward.__code__)


def _instance_norm_mixes(given: dict[str, Any], _: Any) -> bool:
    """Return whether a call updates running statistics, which are a mean over samples."""
    return given["use_input_stats"] and given["running_mean"] is not None


def _check_caller(function: str, frame: Any) -> None:
    """Check that a function is called within a model of an engine.

    Args:
        function: The name of the function.
        frame: The frame of its caller.

    Raises:
        UsageError: Another model calls it, or the training loop itself.
    """
    import torch

    if torch._C._current_graph_task_id() != -1:  # recomputed in backward, after it was called in forward
        return
    modules: list[Any] = []
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, torch.nn.Module):
            if caller in _known:
                return
            modules.append(caller)
        frame = frame.f_back
    names = [type(each).__name__ for each in (modules[:1] + modules[-1:])]
    raise UsageError(statistics_message(next(iter(_processing.values())), function, names))
