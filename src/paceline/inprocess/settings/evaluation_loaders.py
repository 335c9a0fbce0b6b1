"""Evaluation loaders keep the program's settings, unless a recipe sets their workers.

Starting workers may take longer than a short evaluation. An epoch that begins while gradients are disabled counts as
evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation

KEY = "loader.evaluation_workers"
_NAMES = ("num_workers", "prefetch_factor", "persistent_workers", "timeout")
_DEFAULTS: Mapping[str, Any] = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}
_own: WeakKeyDictionary[Any, Mapping[str, Any]] = WeakKeyDictionary()  # loader -> the program's own settings


def follow(loader: Any, asked: Mapping[str, Any]) -> None:
    """Store the program's own settings of a loader.

    Args:
        loader: The new loader.
        asked: The arguments that the program passed.
    """
    if asked.get("persistent_workers") or asked.get("multiprocessing_context") is not None:
        return  # persistent workers serve training and evaluation
    wanted = {name: asked.get(name, _DEFAULTS[name]) for name in _NAMES}
    if wanted["num_workers"] and wanted["prefetch_factor"] is None:
        wanted["prefetch_factor"] = 2
    _own[loader] = wanted


def patch(torch: Any, workers: int | None) -> None:
    """Start evaluation epochs with the program's own loader settings, or with a given number of workers.

    Args:
        torch: The module.
        workers: The number of workers of evaluation loaders; None for the program's own number.
    """
    loader_class = torch.utils.data.DataLoader
    original = loader_class.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        own = _own.get(self)
        if own is None or torch.is_grad_enabled():
            return original(self)
        wanted = own if workers is None else _with_workers(torch, self, own, workers)
        changed = {name: getattr(self, name) for name in _NAMES}
        _set(self, wanted)
        try:
            return original(self)
        finally:
            _set(self, changed)

    hooks.install(loader_class, "__iter__", __iter__)


def _with_workers(torch: Any, loader: Any, own: Mapping[str, Any], workers: int) -> Mapping[str, Any]:
    """Return the settings of an evaluation loader with the given workers, which start anew for each evaluation."""
    what = f"{type(loader.dataset).__name__} in batches of {loader.batch_size}"
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        confirmation.refused(
            KEY, f"the evaluation reads {what}, an IterableDataset, and each worker might read all of it"
        )
        return own
    confirmation.took(KEY, f"the evaluation loads {what} with {workers} workers instead of {own['num_workers']}")
    return {**own, "num_workers": workers, "prefetch_factor": own["prefetch_factor"] or 2}


def _set(loader: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        object.__setattr__(loader, name, value)
