"""Detect whether a stream (IterableDataset) keeps state that would be lost in a worker.

A worker has a copy of the dataset, and a new copy in each epoch. A stream that counts, shuffles with its own generator
or keeps a position continues where it was if the training process reads it, but restarts in a worker. The worker
therefore compares the state of its copy with the initial state, and reports a difference.
"""

from __future__ import annotations

import functools
import io
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation
from paceline.inprocess.settings.digest import digest, fields_of

KEY = "loader.num_workers"
_LONG = 1000  # elements; of a longer collection only the length is compared
_LARGE = 65536  # bytes; of a larger array only the identity is compared
_PLAIN = (str, bytes, int, float, complex, type(None))


@dataclass(frozen=True)
class Watched:
    """A worker_init_fn that calls the program's worker_init_fn and then checks the state of the stream."""

    own: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        """Initialise a worker, and prepare the comparison of the stream's state after later fetches."""
        from torch.utils.data import get_worker_info
        from torch.utils.data._utils.fetch import _IterableDatasetFetcher

        if self.own is not None:
            self.own(worker)
        info = get_worker_info()
        if info is not None:
            _watch(_IterableDatasetFetcher, info.dataset)


def _watch(fetcher: Any, dataset: Any) -> None:
    """Compare the stream's state with its initial state after batches 1, 2, 4 and so on, and at the end."""
    before, fetch = remembered(dataset), fetcher.fetch
    fetched = 0

    @functools.wraps(fetch)
    def watched(self: Any, index: Any) -> Any:
        nonlocal fetched
        try:
            data = fetch(self, index)
        except StopIteration:
            _compare(before, dataset)
            raise
        fetched += 1
        if fetched & (fetched - 1) == 0:
            _compare(before, dataset)
        return data

    hooks.install(fetcher, "fetch", watched)


def _compare(before: list[Any], dataset: Any) -> None:
    if _Place in before or remembered(dataset) != before:
        confirmation.gave_up(
            KEY,
            f"{type(dataset).__name__} keeps its read position between epochs, but the copy in a worker would start "
            f"again from the beginning in each epoch",
        )


class _Place:
    """Represents an object with a position: an iterator, a generator, an open file."""


def remembered(dataset: Any) -> list[Any]:
    """Return the state of a dataset as a list, which can be compared with later lists of the same process.

    A large array is represented by its identity instead of its content.
    """
    row: list[Any] = []
    _note(dataset, row, {})
    return row


def _note(value: Any, row: list[Any], seen: dict[int, Any]) -> None:
    if isinstance(value, _PLAIN):
        row.append(value)
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    drawn = random_state(value)
    if drawn is not None:
        row.append(digest(drawn))
    elif _is_place(value):
        row.append(_Place)
    elif hasattr(value, "nbytes") and hasattr(value, "tolist"):
        row.append(digest(value) if value.nbytes <= _LARGE else id(value))
    else:
        for part in _parts(value, row):
            _note(part, row, seen)


def _parts(value: Any, row: list[Any]) -> list[Any]:
    """Return the parts of a collection or an object; for a collection, also append the length to the row."""
    if isinstance(value, type | ModuleType):
        return []
    if not isinstance(value, Mapping | Set | list | tuple | deque):
        return [getattr(value, name) for name in sorted(fields_of(value))]
    row.append(len(value))
    if len(value) > _LONG:
        return []
    return [part for pair in value.items() for part in pair] if isinstance(value, Mapping) else list(value)


def random_state(value: Any) -> Any:
    """Return the state of a random number generator of Python, NumPy or torch; None for another object."""
    if isinstance(value, random.Random):
        return value.getstate()
    if hasattr(value, "bit_generator"):
        return value.bit_generator.state
    return value.get_state() if hasattr(value, "get_state") and hasattr(value, "seed") else None


def _is_place(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not value.closed
    return isinstance(value, Iterator) and not hasattr(value, "__dict__")
