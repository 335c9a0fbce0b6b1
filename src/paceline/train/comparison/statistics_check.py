"""Refuses statistics that a model outside of the engine computes from the samples of one rank.

The engine's models compute the statistics of BatchNorm over the samples of all ranks (`batch_norm.py`). Another model
that the training loop calls, such as a teacher, would use the samples of its rank only. While a batch is processed,
`batch_norm` and `instance_norm` of `torch.nn.functional` are therefore replaced by functions that check their caller.
A model of the engine is compared with one process as a whole, so its own calls of these functions are allowed.
"""

from __future__ import annotations

import functools
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
    """Checks models that are called while an engine processes a batch."""

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
        """End the check that `active` began with this reason; without one, do nothing."""
        _processing.pop((id(self), reason), None)
        if not _processing:
            _restore_functions()


def _replace_functions() -> None:
    from torch.nn import functional

    for name, checked in (("batch_norm", _checked_batch_norm), ("instance_norm", _checked_instance_norm)):
        if name not in _originals:
            _originals[name] = getattr(functional, name)
            hooks.install(functional, name, checked(_originals[name]))


def _restore_functions() -> None:
    from torch.nn import functional

    for name, original in _originals.items():
        if getattr(getattr(functional, name), "__wrapped__", None) is original:  # else the program has replaced it
            setattr(functional, name, original)
    _originals.clear()


@functools.cache
def _checked_batch_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `batch_norm` with a check, if it computes statistics over samples."""
    from torch.nn.modules.batchnorm import _BatchNorm

    @functools.wraps(original)
    def batch_norm(  # noqa: PLR0913, PLR0917
        input: Any,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        # A function of the program can call it with a single row, to normalise weights or each sample alone.
        if training and (input.shape[0] > 1 or sys._getframe(1).f_code is _BatchNorm.forward.__code__):
            _check_caller("batch_norm")
        return original(input, running_mean, running_var, weight, bias, training, momentum, eps)

    return batch_norm


@functools.cache
def _checked_instance_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `instance_norm` with a check, if it updates running statistics, which are a mean over samples."""

    @functools.wraps(original)
    def instance_norm(  # noqa: PLR0913, PLR0917
        input: Any,
        running_mean: Any = None,
        running_var: Any = None,
        weight: Any = None,
        bias: Any = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if use_input_stats and running_mean is not None:
            _check_caller("instance_norm")
        return original(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)

    return instance_norm


def _check_caller(function: str) -> None:
    """Check that a model of an engine calls a function.

    Raises:
        UsageError: Another model calls it, or the training loop itself.
    """
    import torch

    if torch._C._current_graph_task_id() != -1:  # recomputed in backward, after it was called in forward
        return
    frame: Any = sys._getframe(2)
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
