"""loader.cache: samples that were made once are kept in the memory of the training process.

Only where a sample is the same each time; that is found by making the first ones twice.
"""

from __future__ import annotations

import functools
import random
import sys
from typing import Any

from paceline.hardware.files import LocalFiles
from paceline.hardware.memory import available_bytes
from paceline.improve.child import held
from paceline.improve.child.digest import digest

_CHECKED = 3  # samples that are made twice before any is trusted to stay the same
_SHARE = 0.4  # of the memory that is available now, at most


def patch(torch: Any) -> None:
    """Keep the samples of map-style datasets that the training process fetches itself."""
    from torch.utils.data._utils import fetch as module

    fetcher = module._MapDatasetFetcher
    original = fetcher.fetch
    kept: dict[int, _Kept] = {}

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        if not self.auto_collation or torch.utils.data.get_worker_info() is not None:
            return original(self, index)
        samples = kept.setdefault(id(self.dataset), _Kept(torch, self.dataset))
        if not samples.usable:
            return original(self, index)
        return self.collate_fn([samples.get(i) for i in index])

    fetcher.fetch = fetch


class _Kept:
    """The samples of one dataset."""

    def __init__(self, torch: Any, dataset: Any) -> None:
        self._torch = torch
        self._dataset = dataset  # kept alive: its id names it
        self._samples: dict[Any, Any] = {}
        self._left = _SHARE * (available_bytes(LocalFiles()) or 0.0)
        self._checked = 0
        self.usable = not hasattr(dataset, "__getitems__")
        if not self.usable:
            held.refused("loader.cache", "the dataset fetches many samples at a time")

    def get(self, index: Any) -> Any:
        """Return a sample, made now or kept."""
        try:
            return self._samples[index]
        except KeyError:
            pass
        sample = self._dataset[index]
        if self._checked < _CHECKED:
            self._check(index, sample)
        if self.usable and self._left > 0:
            self._samples[index] = sample
            self._left -= size_of(sample)
        return sample

    def _check(self, index: Any, sample: Any) -> None:
        """Make a sample once more, with the random numbers put back behind it."""
        numpy = sys.modules.get("numpy")
        states = self._torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None
        same = digest(self._dataset[index]) == digest(sample)
        self._torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy:
            numpy.random.set_state(states[2])
        self._checked += 1
        if not same:
            self.usable = False
            self._samples.clear()
            held.refused("loader.cache", "a sample is another each time it is made")
        elif self._checked == _CHECKED:
            held.took("loader.cache", f"samples of {type(self._dataset).__name__} are kept in memory")


def size_of(sample: Any) -> int:
    """Return about how many bytes a sample takes."""
    if isinstance(sample, dict):
        return sum(size_of(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(size_of(value) for value in sample)
    return int(getattr(sample, "nbytes", 0)) + 64
