"""loader.cache: samples that were made once are kept in the memory of the training process.

Only where a sample is the same each time; that is found by making the first ones twice.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

from paceline.hardware.files import LocalFiles
from paceline.hardware.memory import available_bytes
from paceline.improve.child import held
from paceline.improve.child.digest import digest
from paceline.improve.child.threads import beside_training

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
        own = self.auto_collation and torch.utils.data.get_worker_info() is None
        if own and not isinstance(self.dataset, _Kept):
            samples = kept.setdefault(id(self.dataset), _Kept(torch, self.dataset))
            if samples.usable:
                self.dataset = samples  # from here on the fetcher asks it, and is counted and timed as always
        return original(self, index)

    fetcher.fetch = fetch


class _Kept:
    """The samples of one dataset, in its place."""

    def __init__(self, torch: Any, dataset: Any) -> None:
        self._torch = torch
        self._dataset = dataset  # kept alive: its id names it
        self._samples: dict[Any, Any] = {}
        self._left = _SHARE * (available_bytes(LocalFiles()) or 0.0)
        self._checked = 0
        self.usable = not hasattr(dataset, "__getitems__")
        if not self.usable:
            held.refused("loader.cache", "the dataset fetches many samples at a time")

    def __getitem__(self, index: Any) -> Any:
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
        """Make a sample once more; the random numbers that were drawn for that are put back.

        Beside the training thread they are left: what it draws meanwhile (dropout) would be drawn twice.
        """
        put_back = _nothing if beside_training() else _random_numbers(self._torch)
        same = digest(self._dataset[index]) == digest(sample)
        put_back()
        self._checked += 1
        if not same:
            self.usable = False
            self._samples.clear()
            held.refused("loader.cache", "a sample is another each time it is made")
        elif self._checked == _CHECKED:
            held.took("loader.cache", f"samples of {type(self._dataset).__name__} are kept in memory")


def _nothing() -> None:
    pass


def _random_numbers(torch: Any) -> Callable[[], None]:
    """Return what puts the random numbers of torch, Python and numpy back to where they are now."""
    numpy = sys.modules.get("numpy")
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    of_numpy = numpy.random.get_state() if numpy else None

    def put_back() -> None:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)

    return put_back


def size_of(sample: Any) -> int:
    """Return about how many bytes a sample takes."""
    if isinstance(sample, dict):
        return sum(size_of(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(size_of(value) for value in sample)
    return int(getattr(sample, "nbytes", 0)) + 64
