"""loader.cache: keep samples in the memory of the training process after they were loaded once.

Only a dataset whose samples stay the same is cached. To check this, the first samples are loaded twice, and in later
epochs some of the cached samples are loaded again: one of 64 in the second epoch and twice as many in each later epoch,
up to one of 8, spread over the epoch, and at least 32. The state of the dataset is compared too: when an epoch begins
and after 1, 2, 4, 8 and so on cached samples. If anything differs, all samples are dropped. With a collate function
other than torch's own, cached samples are copied, because the function may change them.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from paceline.hardware.host import available_bytes
from paceline.hardware.operating_system import LocalFiles
from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation
from paceline.inprocess.settings.dataset_state import changed, in_words, state_of
from paceline.inprocess.settings.digest import digest
from paceline.inprocess.settings.seeds import save_states
from paceline.inprocess.settings.threads import beside_training

_NEW_DATASETS = 2  # datasets of the same type and length that the program has dropped after one epoch
_OWN_REFERENCES = 2  # to a dataset: the attribute of its cache, and the argument of `sys.getrefcount`
_CHECKED = 3  # samples that are loaded twice before the dataset is trusted
_SECOND_EPOCH, _MOST = 1 / 64, 1 / 8  # share of the cached samples to load again; doubles in each epoch
_FEWEST = 32  # least number of these samples, within the largest share
_SHARE = 0.4  # share of this rank's available memory, measured at the first sample, for all datasets together


def patch(torch: Any) -> None:
    """Cache the samples of map-style datasets that the training process itself loads."""
    from torch.utils.data._utils import fetch as module

    fetcher = module._MapDatasetFetcher
    original = fetcher.fetch
    caches = _Caches(torch)

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        own = self.auto_collation and torch.utils.data.get_worker_info() is None
        samples = caches.of(self.dataset) if own and not isinstance(self.dataset, _Lent) else None
        if samples is not None and samples.usable:
            samples.begin_epoch()  # each epoch has its own fetcher
            copies = self.collate_fn is not torch.utils.data.default_collate
            self.dataset = _Lent(samples, copies)  # the fetcher reads from this wrapper, which is timed as before
        return original(self, index)

    hooks.install(fetcher, "fetch", fetch)


class _Caches:
    """The cached samples of all datasets of this process."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._room = torch, _Room()
        self._caches: dict[int, _CachedSamples] = {}  # by the id of the dataset, which is kept alive
        self._left_out: set[tuple[type, int | None]] = set()  # type and length of datasets that are made in each epoch

    def of(self, dataset: Any) -> _CachedSamples | None:
        """Return the cached samples of a dataset; None if the program makes a new dataset for each epoch.

        No cached sample is then read again, and the cache would only keep old datasets in memory.
        """
        kind = _kind(dataset)
        if kind in self._left_out:
            return None
        if id(dataset) not in self._caches:
            alike = {key: one for key, one in self._caches.items() if one.kind == kind and one.is_dropped}
            if len(alike) >= _NEW_DATASETS:
                self._leave_out(kind, alike)
                return None
            self._caches[id(dataset)] = _CachedSamples(self._torch, dataset, self._room)
        return self._caches[id(dataset)]

    def _leave_out(self, kind: tuple[type, int | None], alike: Mapping[int, _CachedSamples]) -> None:
        self._left_out.add(kind)
        for key, one in alike.items():
            one.give_up("the program makes a new dataset for each epoch; make it once, before the first epoch")
            del self._caches[key]


class _Room:
    """The memory that is left for samples of all datasets of this process."""

    def __init__(self) -> None:
        self._left: float | None = None

    def take(self, n_bytes: int) -> bool:
        """Return whether memory is left, and if so reserve the given number of bytes."""
        if self._left is None:
            ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
            self._left = _SHARE * (available_bytes(LocalFiles()) or 0.0) / ranks
        if self._left <= 0:
            return False
        self._left -= n_bytes
        return True


class _Lent:
    """Wrapper of a dataset and its cached samples, for one epoch of one loader."""

    def __init__(self, kept: _CachedSamples, copies: bool) -> None:
        self._kept = kept
        self._copies = copies

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, loaded or cached; a copy if the receiver may change it."""
        return self._kept.sample(index, copy.deepcopy if self._copies else _itself)


class _CachedSamples:
    """The cached samples of one dataset."""

    def __init__(self, torch: Any, dataset: Any, room: _Room) -> None:
        self._torch = torch
        self._dataset = dataset  # keeps the dataset alive, because it is found by its id
        self._samples: dict[Any, Any] = {}
        self._room = room
        self._to_check = _CHECKED
        self._trusted = False
        self._epochs = 0
        self._taken = 0  # cached samples used in this epoch
        self._share = 0.0  # share of the cached samples that are loaded again in this epoch
        self._state = state_of(dataset)
        self._volatile: set[str] = set()  # attributes that change when a sample is loaded
        self.usable = not _fetches_many(torch, dataset)
        if not self.usable:
            confirmation.refused("loader.cache", "the dataset returns several samples at a time (__getitems__)")

    @property
    def kind(self) -> tuple[type, int | None]:
        """The type and the length of the dataset."""
        return _kind(self._dataset)

    @property
    def is_dropped(self) -> bool:
        """Whether the program no longer refers to the dataset after one epoch."""
        return self._epochs == 1 and sys.getrefcount(self._dataset) <= _OWN_REFERENCES

    def begin_epoch(self) -> None:
        """Compare the dataset's state, and set the share of samples to check in this epoch."""
        self._epochs, self._taken = self._epochs + 1, 0
        self._share = checked_share(self._epochs, len(self._samples))
        if self._epochs > 1:
            self._compare_state()

    def sample(self, index: Any, copied: Callable[[Any], Any]) -> Any:
        """Return a sample, loaded or cached. The cache stores and returns only results of `copied`."""
        key = _key(index)
        if not self.usable or key is None:
            return self._dataset[index]
        if key not in self._samples:
            return self._made(key, index, copied)
        self._taken += 1
        if not self._taken & (self._taken - 1) and not self._compare_state():
            return self._dataset[index]
        sample = self._samples.get(key)
        if sample is None or (self._is_checked(key) and not self._is_same(index, sample)):
            return self._dataset[index]
        return copied(sample)

    def _is_checked(self, key: Any) -> bool:
        """Return whether a sample is checked in this epoch; each epoch checks other samples."""
        return zlib.crc32(f"{self._epochs} {key}".encode()) < self._share * (1 << 32)

    def _compare_state(self) -> bool:
        """Drop all samples if the program has changed the dataset. Return whether it is unchanged."""
        if not self.usable:
            return False
        names = changed(self._state, state_of(self._dataset), self._volatile)
        if names:
            self.give_up(f"the program changes {in_words(names)} of {type(self._dataset).__name__}")
        return not names

    def _made(self, key: Any, index: Any, copied: Callable[[Any], Any]) -> Any:
        sample = self._dataset[index]
        if not self._samples and not self._trusted:
            self._volatile.update(changed(self._state, state_of(self._dataset)))
        if not self._trusted and not self._is_same(index, sample):
            return sample
        if self.usable and self._room.take(size_of(sample)):
            self._samples[key] = copied(sample)
        return sample

    def _is_same(self, index: Any, sample: Any) -> bool:
        """Load a sample again and return whether it is the same, then restore the random number generators.

        Outside the training thread the generators are not restored: numbers that training draws meanwhile (dropout)
        would repeat.
        """
        put_back = _nothing if beside_training() else save_states(self._torch)
        same = digest(self._dataset[index]) == digest(sample)
        put_back()
        self._to_check -= 1
        if not same:
            when = "from epoch to epoch" if self._trusted else "each time it is loaded"
            self.give_up(f"a sample changes {when}")
        elif not self._trusted and self._to_check <= 0:
            self._trusted = True
            confirmation.took("loader.cache", f"samples of {type(self._dataset).__name__} are cached in memory")
        return same

    def give_up(self, why: str) -> None:
        """Drop all samples, and stop caching this dataset."""
        self.usable = False
        self._samples.clear()
        (confirmation.gave_up if self._trusted else confirmation.refused)("loader.cache", why)


def checked_share(epoch: int, kept: int) -> float:
    """Return the share of the cached samples that are loaded again in an epoch; 0 in the first one.

    Args:
        epoch: The number of the epoch, from 1.
        kept: The number of cached samples when the epoch begins.
    """
    if epoch <= 1 or not kept:
        return 0.0
    return min(_MOST, max(_SECOND_EPOCH * 2.0 ** (epoch - 2), _FEWEST / kept))


def _fetches_many(torch: Any, dataset: Any) -> bool:
    """Return whether a dataset loads several samples per call; torch's `Subset` does so if its base dataset does."""
    kind, part = type(dataset), torch.utils.data.Subset
    if isinstance(dataset, part) and (kind.__getitem__, kind.__getitems__) == (part.__getitem__, part.__getitems__):
        return _fetches_many(torch, dataset.dataset)
    return hasattr(dataset, "__getitems__")


def _kind(dataset: Any) -> tuple[type, int | None]:
    return type(dataset), len(dataset) if hasattr(dataset, "__len__") else None


def _itself(sample: Any) -> Any:
    return sample


def _key(index: Any) -> Any:
    """Return the cache key of an index, or None if it has none: equal tensors have different hashes."""
    index = index.item() if hasattr(index, "item") and getattr(index, "ndim", 1) == 0 else index
    try:
        hash(index)
    except TypeError:
        return None
    return None if hasattr(index, "detach") else index


def _nothing() -> None:
    pass


def size_of(sample: Any) -> int:
    """Return the approximate number of bytes of a sample."""
    if isinstance(sample, dict):
        return sum(size_of(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(size_of(value) for value in sample)
    return int(getattr(sample, "nbytes", 0)) + 64
