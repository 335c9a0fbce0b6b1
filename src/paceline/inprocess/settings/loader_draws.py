"""How many random numbers does a loader draw at the start of an epoch? As many as the program's own loader would.

A loader draws one for its workers whenever it begins anew, and kept workers begin only once. Whoever keeps workers that
the program would not, or does not keep what it would, shifts all that is drawn later from that stream: shuffling,
dropout, initial weights.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from paceline.inprocess import hooks

_more: WeakSet[Any] = WeakSet()  # loaders that keep workers which the program would start anew
_fewer: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # that keep none where it would; whether one epoch has begun


def follow(loader: Any, *, asked: bool, keeps: bool) -> None:
    """Have a loader draw as it would have.

    Args:
        loader: Just made.
        asked: Whether the program asked that its workers be kept.
        keeps: Whether they are.
    """
    if keeps and not asked:
        _more.add(loader)
    if asked and not keeps:
        _fewer[loader] = False


def asked_at_first(dataset: Any, asked: bool) -> bool:
    """Return whether the program asked that workers be kept, of a loader that may be made after another's likeness.

    Accelerate, and so Hugging Face's Trainer, makes loaders anew from what those of the program say, and these say
    what we had them say.

    Args:
        dataset: That it reads.
        asked: What it is given.
    """
    like = _more if asked else _fewer
    return asked != any(getattr(one, "dataset", None) is dataset for one in list(like))


def patch(torch: Any) -> None:
    """Watch over the start of each epoch."""
    from torch.utils.data import dataloader

    _patch_kept(torch, dataloader._MultiProcessingDataLoaderIter)
    _patch_new(torch, dataloader._BaseDataLoaderIter)


def _patch_kept(torch: Any, iterator: Any) -> None:
    original = iterator._reset

    @functools.wraps(original)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        if not first_iter and loader in _more:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return original(self, loader, first_iter)

    hooks.install(iterator, "_reset", _reset)


def _patch_new(torch: Any, iterator: Any) -> None:
    original = iterator.__init__

    @functools.wraps(original)
    def __init__(self: Any, loader: Any) -> None:
        begun = _fewer.get(loader)
        if not begun:
            original(self, loader)
            if begun is not None:
                _fewer[loader] = True
            return
        generator = loader.generator or torch.default_generator
        state = generator.get_state()
        original(self, loader)
        generator.set_state(state)

    hooks.install(iterator, "__init__", __init__)
