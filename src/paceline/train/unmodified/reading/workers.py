"""Reading in worker processes of a `DataLoader`: each rank's workers read the rank's rows of a batch.

A dataset can change when a sample is read, for example if it counts its samples. In one process, each worker has its
own copy of such a dataset, and reads whole batches. So each worker reads its first two batches whole. If reading
changes the dataset, the worker reads all batches whole, and returns the rows of its rank.

A worker can be forked or start anew, and knows nothing of the other ranks. What it needs travels with the indices.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.inprocess import hooks
from paceline.train.unmodified.reading.read_side_effects import CHECKED_BATCHES, changed_names, reachable_state, reread

DEPENDS = "a sample depends on the samples that were read before"
_RANDOM = "each reading of a sample gives another result"
_CHANGES = "_paceline_changes"  # attribute of a worker's fetcher: whether reading has side effects, or None at first
_READS = "_paceline_reads"  # attribute of a worker's fetcher: the number of batches that were checked


class WorkerPart(list[Any]):
    """The indices of the samples that one rank reads of a batch; the indices of the whole batch are an attribute.

    Args:
        whole: The indices of the whole batch.
        low: The first row of the rank.
        high: The row after the rank's last row.
        note: The path of a file. A worker whose dataset changes writes there what changes.
    """

    def __init__(self, whole: Sequence[Any], low: int, high: int, note: str) -> None:
        super().__init__(list(whole)[low:high])
        self.whole, self.low, self.high, self.note = whole, low, high, note

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.whole, self.low, self.high, self.note)


def _arrived(*given: Any) -> WorkerPart:
    """Create the indices in a worker process, and patch torch's class that reads samples in this process."""
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    patch(_MapDatasetFetcher)
    return WorkerPart(*given)


def patch(fetcher: Any) -> None:
    """Patch torch's class that reads the samples of a batch. Nothing happens if the class is patched already."""
    if hasattr(fetcher, "_paceline_parts"):
        return
    fetcher._paceline_parts = True
    original = fetcher.fetch

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        if not isinstance(index, WorkerPart):
            return original(self, index)
        return _part_of(self, functools.partial(original, self), index)

    hooks.install(fetcher, "fetch", fetch)


def _part_of(fetcher: Any, fetch: Callable[[Any], Any], index: WorkerPart) -> Any:
    """Return the rows of a rank. Read the other samples of the batch too if reading changes the dataset."""
    known = getattr(fetcher, _CHANGES, None)
    if known is False:
        return fetch(list(index))
    if known is None:
        return rows_of(_first_batch(fetcher, fetch, index), index.low, index.high)
    return rows_of(fetch(index.whole), index.low, index.high)


def _first_batch(fetcher: Any, fetch: Callable[[Any], Any], index: WorkerPart) -> Any:
    """Read a whole batch, and check whether reading has side effects. The result is stored in the fetcher."""
    import torch

    reads = getattr(fetcher, _READS, 0) + 1
    setattr(fetcher, _READS, reads)
    before = reachable_state(torch, fetcher.dataset)
    found = fetch(index.whole)
    changed = changed_names(before, reachable_state(torch, fetcher.dataset), is_first=reads == 1)
    reason = f"reading a sample changes {changed[0]}" if changed else ""
    if reads == CHECKED_BATCHES and not changed:
        reason = {"equal": "", "depends": DEPENDS, "random": _RANDOM}[reread(torch, fetcher.dataset, index.whole)]
    if reason:
        with open(f"{index.note}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(reason)
        os.replace(file.name, index.note)
    if reason or reads == CHECKED_BATCHES:
        setattr(fetcher, _CHANGES, bool(reason))
    return found


def rows_of(batch: Any, low: int, high: int) -> Any:
    """Return some rows of a batch of `default_collate`: tensors, lists of text, and containers of these."""
    if isinstance(batch, Mapping):
        return like(batch, {key: rows_of(value, low, high) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rows_of(value, low, high) for value in batch))
    if isinstance(batch, list | tuple) and not (batch and isinstance(batch[0], str | bytes)):
        return type(batch)(rows_of(value, low, high) for value in batch)
    return batch[low:high]


def like(batch: Mapping[Any, Any], found: dict[Any, Any]) -> Any:
    """Convert a dictionary to the mapping type of a batch, or return the dictionary if the type does not accept it."""
    try:
        return type(batch)(found)  # type: ignore[call-arg]
    except TypeError:
        return found
