"""loader.threads: load batches ahead in threads of the training process, in order.

Threads suit datasets whose code waits or releases the GIL (decoders, NumPy on large arrays): nothing is pickled or
copied between processes. The training thread draws from the sampler, so the order is unchanged. Some samples are loaded
again by one thread alone (`sample_check`). If a sample differs, the training thread loads all further batches itself
and discards those loaded ahead.
"""

from __future__ import annotations

import functools
import io
import tarfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import finalize

from paceline.inprocess import hooks
from paceline.inprocess.recorder.loaders import iteration
from paceline.inprocess.settings import confirmation, dataset_changes, ready_batches
from paceline.inprocess.settings.digest import fields_of
from paceline.inprocess.settings.sample_check import DIFFERS, SampleCheck, stresses

_KEY = "loader.threads"
_AHEAD = 2  # batches per thread that are loaded ahead
_NAME = "paceline-fetch"
_MOST = 2000  # limit of checked objects in a dataset
_PARTS = 64  # limit of checked objects in a collection
_READERS = ("h5py._hl.files.File", "sqlite3.Connection", "netCDF4._netCDF4.Dataset", "zipfile.ZipExtFile")
_lost: set[int] = set()  # ids of datasets that several threads cannot load from
_checks: dict[int, SampleCheck] = {}  # by the id of the dataset, which the check keeps alive


def patch(torch: Any, threads: int) -> None:
    """Make every loader without workers use this number of threads."""
    from torch.utils.data import dataloader

    iterator = dataloader._SingleProcessDataLoaderIter
    original = iterator._next_data

    @functools.wraps(original)
    def _next_data(self: Any) -> Any:
        batches = vars(self).get("_paceline_batches")
        if batches is None:
            if dataset_changes.is_given_up(self) or id(self._dataset_fetcher.dataset) in _lost:
                return original(self)
            why = _why_not(self, dataloader)
            if why:
                confirmation.refused(_KEY, why)
                return original(self)
            batches = self._paceline_batches = _Ahead(torch, self, threads)
            iteration.detail(self, "threads", threads)
            confirmation.took(_KEY, f"{threads} threads load batches")
        data = batches.next()
        if self._pin_memory:
            data = dataloader._utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    hooks.install(iterator, "_next_data", _next_data)


def _why_not(iterator: Any, dataloader: Any) -> str:
    """Return the reason why threads cannot load an iterator's batches; empty if they can."""
    if iterator._dataset_kind != dataloader._DatasetKind.Map:
        return "the dataset is an IterableDataset, which only one reader can iterate"
    shared = one_reader(iterator._dataset_fetcher.dataset)
    return f"the dataset reads from one open {shared}, and only one thread at a time can use it" if shared else ""


def beside_training() -> bool:
    """Return whether the caller is a thread that loads batches while the training thread continues."""
    return threading.current_thread().name.startswith(_NAME)


def one_reader(dataset: Any) -> str | None:
    """Return the class name of an open file in a dataset, whose position threads would change; None if none is open."""
    return next((type(value).__name__ for value in _all_in(dataset) if _is_reader(value)), None)


def _is_reader(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable()
    return isinstance(value, tarfile.TarFile) or f"{type(value).__module__}.{type(value).__name__}" in _READERS


def _all_in(dataset: Any) -> Iterator[Any]:
    """Yield all objects in a dataset: attributes, elements of collections, and their parts."""
    seen: dict[int, Any] = {id(dataset): dataset}
    waiting: deque[Any] = deque([dataset])
    while waiting and len(seen) < _MOST:
        value = waiting.popleft()
        yield value
        if hasattr(value, "nbytes") or isinstance(value, str | bytes | int | float | type):
            continue
        parts = list(value.values()) if isinstance(value, Mapping) else []
        parts += list(value) if isinstance(value, list | tuple | set | deque) else []
        parts = parts[:_PARTS] if parts else [getattr(value, name, None) for name in fields_of(value)]
        new = {id(part): part for part in parts if id(part) not in seen}
        seen |= new
        waiting.extend(new.values())


def _check_of(torch: Any, dataset: Any, *, in_batches: bool) -> SampleCheck:
    """Return the sample check of a dataset; all epochs use the same check."""
    if id(dataset) not in _checks:
        _checks[id(dataset)] = SampleCheck(torch, dataset, in_batches=in_batches)
    return _checks[id(dataset)]


class _Ahead:
    """The batches of one epoch, loaded ahead."""

    def __init__(self, torch: Any, iterator: Any, threads: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._iterator = iterator
        self._dataset = iterator._dataset_fetcher.dataset
        self._fetch = iterator._dataset_fetcher.fetch
        self._check = _check_of(torch, self._dataset, in_batches=bool(iterator._auto_collation))
        self._check.begin_epoch()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=_NAME)
        self._next_index = iterator._next_index
        self._threads = threads
        self._making: deque[tuple[Any, Any]] = deque()  # indices, and the future of the batch with a sample to check
        self._more = True
        self._alone = False  # the training thread loads the batches
        self._taken = 0
        ready_batches.follow(self)
        finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)  # if the epoch is left early
        if stresses() and not self._check.is_stressed:
            self._stress()

    def counts(self) -> tuple[int, int]:
        """Return the number of ready batches and of requested batches, without batches already taken."""
        making = list(self._making)
        return sum(future is None or future.done() for _, future in making), len(making)

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: There are no more batches.
        """
        self._ask(0 if self._alone else _AHEAD * self._threads)
        if not self._making:
            self._pool.shutdown(wait=False)
            raise StopIteration
        if not self._alone and dataset_changes.is_given_up(self._iterator):
            self._go_alone()
        data = self._taken_from(*self._making.popleft())
        self._taken += 1
        if self._taken == 1:
            with self._check.turns.alone():
                dataset_changes.loaded(self._iterator)
        return data

    def _taken_from(self, index: Any, future: Any) -> Any:
        """Return a batch. If threads loaded a different sample, the training thread loads the batch again."""
        if self._alone:
            return self._fetch(index)
        data, sample = future.result()
        if self._still_one_reader() and (sample is None or self._check.agrees(*sample)):
            return data
        self._lose(f"{DIFFERS}; {self._taken} batches of this epoch were used before that was seen")
        return self._fetch(index)

    def _lose(self, why: str) -> None:
        _lost.add(id(self._dataset))
        confirmation.gave_up(_KEY, why)
        self._go_alone()

    def _ask(self, ahead: int) -> None:
        while self._more and len(self._making) <= ahead:
            try:
                index = self._next_index()
            except StopIteration:
                self._more = False
            else:
                future = None if self._alone else self._pool.submit(self._make, index, self._check.is_due())
                self._making.append((index, future))

    def _make(self, index: Any, is_checked: bool) -> tuple[Any, Any]:
        with self._check.turns.together():
            data = self._fetch(index)
            return data, self._check.load(index) if is_checked else None

    def _still_one_reader(self) -> bool:
        """Return False if loading the first samples opened a file that threads would share, else True."""
        return self._taken > 1 or one_reader(self._dataset) is None

    def _go_alone(self) -> None:
        """Stop the threads. The training thread loads their batches again."""
        self._alone = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _stress(self) -> None:
        """Load samples of the first batches in all threads at the same time."""
        while self._more and len(self._making) <= _AHEAD * self._threads:
            try:
                self._making.append((self._next_index(), None))
            except StopIteration:
                self._more = False
        indices = [index for index, _ in self._making]
        if not self._check.withstands(indices, self._pool, self._threads):
            self._lose(DIFFERS)
            return
        self._making = deque((index, self._pool.submit(self._make, index, self._check.is_due())) for index in indices)
