"""Patches of torch's DataLoader: each rank reads its rows of a batch and receives the others from the other ranks.

The indices of a batch are drawn as in one process, compared over the ranks, and then split. A loader with its own
`collate_fn` is not split: each rank reads whole batches, as the function can use all samples. Neither is a loader whose
dataset changes when a sample is read. The first two batches are read whole to detect this (`read_side_effects`); with
workers, the first two batches of each worker (`workers`).
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from paceline.data.batches.own_generators import own_generators
from paceline.inprocess import hooks, import_hook
from paceline.train.unmodified import draws
from paceline.train.unmodified.call import bounds, sizes
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.reading import datasets, read_side_effects, workers
from paceline.train.unmodified.state import Spread


def patch(spread: Spread, exchange: Exchange, note_samples: Callable[[int], None]) -> None:
    """Patch torch's loaders so that ranks split batches.

    Args:
        spread: The state of this rank.
        exchange: The exchanges with the other ranks.
        note_samples: Is called with a CRC32 of the indices of each batch.
    """
    from torch.utils.data import dataloader

    reading = _Reading(spread, exchange, note_samples)
    base = dataloader._BaseDataLoaderIter
    _patch_init(spread, reading, base, dataloader)
    _patch_indices(spread, reading, base)
    for kind in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
        _patch_next(spread, reading, kind)
    import_hook.install({"paceline.data.loader.loader": lambda module: _refuse_ours(spread, module.Loader)})
    _patch_fetch(reading, dataloader._utils.fetch._MapDatasetFetcher)


def _patch_init(spread: Spread, reading: _Reading, base: Any, dataloader: Any) -> None:
    original = base.__init__

    @functools.wraps(original)
    def __init__(self: Any, loader: Any) -> None:
        if spread.acts():
            _check(spread, loader, dataloader)
            if "_paceline_compared" not in vars(loader):
                datasets.compare(spread, reading.exchange, loader.dataset, was_split=reading.was_split(loader.dataset))
                loader._paceline_compared = True
                loader._paceline_changes = reading.must_read_whole(loader.dataset)  # None before the check has ended
                loader._paceline_note = os.path.join(spread.folder, f"reading-{uuid4()}")
                loader._paceline_reads = 0  # number of batches that were checked
        original(self, loader)
        if spread.acts():
            plain = self._collate_fn is dataloader._utils.collate.default_collate and getattr(loader, "in_order", True)
            self._paceline_waiting = deque()
            self._paceline_splits = plain and self._auto_collation
            self._paceline_splits = self._paceline_splits and not loader._paceline_changes
            self._paceline_loader, self._paceline_undecided = loader, loader._paceline_changes is None
            if self._paceline_splits:
                self._base_seed += spread.rank  # workers of other ranks draw for other samples

    hooks.install(base, "__init__", __init__)
    reset = base._reset

    @functools.wraps(reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_paceline_waiting" in vars(self):  # persistent workers start a new epoch
            self._paceline_waiting.clear()
        reset(self, *args, **kwargs)

    hooks.install(base, "_reset", _reset)


def _check(spread: Spread, loader: Any, dataloader: Any) -> None:
    """End the program if the dataset is iterable-style, or if the loader already splits samples over processes."""
    name = type(loader.dataset).__name__
    if loader._dataset_kind != dataloader._DatasetKind.Map:
        spread.refuse(
            f"{name} is a stream whose samples have no numbers, so ranks cannot take parts of a batch; give it "
            "__getitem__ and __len__, or use paceline.data.Loader with paceline.train"
        )
    from torch.utils.data import DistributedSampler

    if isinstance(loader.sampler, DistributedSampler):
        spread.refuse(
            "the loader has a DistributedSampler, so the program already trains in several processes; start it with "
            "`paceline run -- torchrun --nproc-per-node N SCRIPT` without --layout"
        )


def _refuse_ours(spread: Spread, loader: Any) -> None:
    original = loader.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        if spread.acts():
            spread.refuse(
                "paceline.data.Loader distributes samples over ranks itself; write the loop with paceline.train, or "
                "use torch's DataLoader"
            )
        return original(self)

    hooks.install(loader, "__iter__", __iter__)


def _patch_indices(spread: Spread, reading: _Reading, base: Any) -> None:
    original = base._next_index

    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        index = original(self)
        if "_paceline_waiting" not in vars(self) or spread.off:
            return index
        return reading.part_of(self, index)

    hooks.install(base, "_next_index", _next_index)


def _patch_next(spread: Spread, reading: _Reading, kind: Any) -> None:
    original = kind._next_data

    @functools.wraps(original)
    def _next_data(self: Any) -> Any:
        if "_paceline_waiting" not in vars(self) or spread.off:
            return original(self)
        return reading.whole(self, functools.partial(original, self))

    hooks.install(kind, "_next_data", _next_data)


def _patch_fetch(reading: _Reading, fetcher: Any) -> None:
    original = fetcher.fetch

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        return reading.fetched(functools.partial(original, self), index)

    hooks.install(fetcher, "fetch", fetch)


class _Reading:
    """Reads batches in parts, and gathers them."""

    def __init__(self, spread: Spread, exchange: Exchange, note_samples: Callable[[int], None]) -> None:
        self._spread, self.exchange, self._note_samples = spread, exchange, note_samples
        self._streams = draws.Streams(spread)
        self._of_a_part = False  # whether the batch that this process reads next is split
        self._first_of: Any = None  # the loader whose first batch this process reads next
        self._split: dict[int, weakref.ref[Any]] = {}  # datasets of which ranks have read parts of batches, by id

    def was_split(self, dataset: Any) -> bool:
        """Return whether ranks have read parts of batches from a dataset, or from a dataset inside it."""
        return any(
            (known := self._split.get(id(each))) is not None and known() is each for each in datasets.nested(dataset)
        )

    def _note_split(self, dataset: Any) -> None:
        for each in datasets.nested(dataset):
            with suppress(TypeError):  # an object without weak references, such as a list
                self._split[id(each)] = weakref.ref(each)

    def must_read_whole(self, dataset: Any) -> bool | None:
        """Return True if each rank must read whole batches of a dataset, or None if the first batches must be checked.

        Whole batches are needed if the dataset defines ``__getitems__`` or has its own random generator.
        """
        if (name := datasets.class_with_getitems(dataset)) is not None:
            self._tell_whole(dataset, f"{name}.__getitems__ gets all samples of a batch at once")
        elif own_generators(dataset):
            self._tell_whole(dataset, "it has its own random generator")
        else:
            return None
        return True

    def _tell_whole(self, dataset: Any, why: str) -> None:
        self._spread.tell(f"each rank reads whole batches of {type(dataset).__name__}, because {why}")

    def part_of(self, iterator: Any, index: Any) -> Any:
        """Return this rank's indices of a batch, or all of them if the batch is not split."""
        spread = self._spread
        if threading.current_thread() is not threading.main_thread():
            spread.refuse(
                "the program reads batches in its own thread, where ranks cannot be synchronized; read them "
                "in the main thread, with num_workers"
            )
        number = zlib.crc32(repr(index).encode())
        if not self.exchange.agree([number]):
            spread.refuse(
                f"{type(iterator._index_sampler).__name__} draws different samples on each rank, because it has "
                "its own random generator; "
                "draw them from torch, numpy or random, or seed them with a number"
            )
        self._note_samples(number)
        loader, of_workers = iterator._paceline_loader, iterator._num_workers > 0
        splits = iterator._paceline_splits and isinstance(index, list | tuple) and len(index) >= spread.ranks
        if splits and not of_workers:
            self._first_of = loader if loader._paceline_changes is None else None
            splits = loader._paceline_changes is False
        iterator._paceline_waiting.append(len(index) if splits else 0)
        self._of_a_part = splits
        if not splits:
            return index
        low, high = bounds(len(index), spread.ranks, spread.rank)
        if of_workers and iterator._paceline_undecided:
            return workers.WorkerPart(index, low, high, loader._paceline_note)
        return list(index)[low:high]

    def fetched(self, fetch: Any, index: Any) -> Any:
        """Read samples in this process; for a part of a batch, random numbers come from this rank's own stream."""
        if self._spread.off or os.getpid() != self.exchange.pid or self._spread.reading:
            return fetch(index)
        self._spread.reading = True
        try:
            with self._streams.own(self._of_a_part):
                return fetch(index) if self._first_of is None else self._first_batch(fetch, index)
        finally:
            self._spread.reading = False

    def _first_batch(self, fetch: Any, index: Any) -> Any:
        """Read a whole batch, and check whether reading has side effects. The result is stored in the loader."""
        loader, self._first_of = self._first_of, None
        dataset, torch = loader.dataset, self._spread.torch
        loader._paceline_reads += 1
        before = read_side_effects.reachable_state(torch, dataset)
        found = fetch(index)
        after = read_side_effects.reachable_state(torch, dataset)
        own = read_side_effects.changed_names(before, after, is_first=loader._paceline_reads == 1)
        every = self.exchange.objects(own)
        if any(every):
            loader._paceline_changes = True
            changed = next(names[0] for names in every if names)
            self._tell_whole(dataset, f"reading a sample changes {changed}")
        elif loader._paceline_reads == read_side_effects.CHECKED_BATCHES:
            loader._paceline_changes = False
            self._note_split(dataset)
            self._agree_on_reread(read_side_effects.reread(torch, dataset, index) == "equal", dataset)
        return found

    def _agree_on_reread(self, is_equal: bool, dataset: Any) -> None:
        """End the program if a rank got another result when it read a sample again."""
        if not all(self.exchange.objects(is_equal)):
            self._spread.refuse(
                f"a sample of {type(dataset).__name__} differs when it is read again after other samples, so ranks "
                "that read parts of a batch would get other samples than one process; keep the state in an attribute "
                "of the data set, so that each rank reads whole batches, and seed all random numbers"
            )

    def whole(self, iterator: Any, read: Any) -> Any:
        """Return the next whole batch, with the rows of all ranks."""
        part = read()
        self._decide(iterator)
        rows = iterator._paceline_waiting.popleft()
        return self._joined(part, sizes(rows, self._spread.ranks)) if rows else part

    def _decide(self, iterator: Any) -> None:
        """Store in the loader whether reading has side effects, after each worker has read its first batches."""
        loader, worker_count = iterator._paceline_loader, iterator._num_workers
        if loader._paceline_changes is not None or not worker_count:
            return
        loader._paceline_reads += 1
        if loader._paceline_reads != read_side_effects.CHECKED_BATCHES * worker_count:
            return
        changed = None
        with suppress(FileNotFoundError):
            changed = Path(loader._paceline_note).read_text(encoding="utf-8")
        every = [one for one in self.exchange.objects(changed) if one]
        loader._paceline_changes = bool(every)
        self._agree_on_reread(workers.DEPENDS not in every, loader.dataset)
        if every:
            self._tell_whole(loader.dataset, every[0])

    def _joined(self, part: Any, parts: Sequence[int]) -> Any:
        """Gather a batch of `default_collate` from all ranks: tensors, lists of strings, and containers of these."""
        torch = self._spread.torch
        if isinstance(part, torch.Tensor):
            whole = self.exchange.all_rows(part, parts)
            return whole.pin_memory() if part.is_pinned() else whole
        if isinstance(part, Mapping):
            return workers.like(part, {key: self._joined(value, parts) for key, value in part.items()})
        if isinstance(part, tuple) and hasattr(part, "_fields"):
            return type(part)(*(self._joined(value, parts) for value in part))
        if isinstance(part, list | tuple) and not (part and isinstance(part[0], str | bytes)):
            return type(part)(self._joined(value, parts) for value in part)
        return type(part)(each for found in self.exchange.objects(part) for each in found)
