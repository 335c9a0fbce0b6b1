"""Keep the number of random draws at the start of an epoch equal to that of the program's own loader.

A loader draws one number for its workers whenever it starts them; persistent workers start only once. If a recipe makes
workers persistent, or restarts workers that the program keeps, all later draws from that generator shift: shuffling,
dropout, initial weights.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from paceline.inprocess import hooks

_more: WeakSet[Any] = WeakSet()  # loaders with workers that only the recipe made persistent
_fewer: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # the reverse -> whether an epoch has begun


def follow(loader: Any, *, asked: bool, keeps: bool) -> None:
    """Make a loader draw as many random numbers as it would without the recipe.

    Args:
        loader: The new loader.
        asked: Whether the program requested persistent workers.
        keeps: Whether the workers are persistent.
    """
    if keeps and not asked:
        _more.add(loader)
    if asked and not keeps:
        _fewer[loader] = False


def asked_at_first(dataset: Any, asked: bool) -> bool:
    """Return whether the program requested persistent workers for a loader, which may copy another loader's settings.

    Accelerate, and so Hugging Face's Trainer, creates loaders from the settings of the program's loaders, and these
    settings already include the recipe.

    Args:
        dataset: The dataset of the loader.
        asked: The value passed to the loader.
    """
    like = _more if asked else _fewer
    return asked != any(getattr(one, "dataset", None) is dataset for one in list(like))


def patch(torch: Any) -> None:
    """Patch the start of each epoch, so that followed loaders draw as many random numbers as without the recipe."""
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
