"""Evaluation loaders keep what the program gave them: starting workers may take longer than a short evaluation.

An epoch that begins while gradients are switched off is one of evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

_NAMES = ("num_workers", "prefetch_factor", "persistent_workers", "timeout")
_DEFAULTS: Mapping[str, Any] = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}
_own: WeakKeyDictionary[Any, Mapping[str, Any]] = WeakKeyDictionary()  # what the program asked for, by loader


def follow(loader: Any, asked: Mapping[str, Any]) -> None:
    """Remember what the program asked for.

    Args:
        loader: The new loader.
        asked: The arguments that the program gave.
    """
    if asked.get("persistent_workers") or asked.get("multiprocessing_context") is not None:
        return  # workers that the program keeps are kept for both
    wanted = {name: asked.get(name, _DEFAULTS[name]) for name in _NAMES}
    if wanted["num_workers"] and wanted["prefetch_factor"] is None:
        wanted["prefetch_factor"] = 2
    if any(getattr(loader, name) != value for name, value in wanted.items()):
        _own[loader] = wanted


def patch(torch: Any) -> None:
    """Begin epochs of evaluation as the program would."""
    loader_class = torch.utils.data.DataLoader
    original = loader_class.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        own = _own.get(self)
        if own is None or torch.is_grad_enabled():
            return original(self)
        changed = {name: getattr(self, name) for name in _NAMES}
        _set(self, own)
        try:
            return original(self)
        finally:
            _set(self, changed)

    loader_class.__iter__ = __iter__


def _set(loader: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        object.__setattr__(loader, name, value)
