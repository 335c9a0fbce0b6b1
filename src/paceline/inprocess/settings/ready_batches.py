"""The number of ready batches that a block of steps took from the loader's queues.

Loaders with workers store ready batches in the result queue, in the queue of the pinning thread, and out of order in
the task table; loaders with threads store them in futures. Requested batches that are not ready are the backlog. Steps
that take ready batches while the backlog grows are faster than the loader. At the end of an epoch no further batches
are requested, so the backlog does not grow. A block of steps in which an epoch begins is not evaluated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from paceline.inprocess import hooks

_iterators: WeakSet[Any] = WeakSet()
_ahead: WeakSet[Any] = WeakSet()
_epochs: list[int] = [0]  # number of epochs begun


@dataclass(frozen=True, kw_only=True)
class Queues:
    """The state of the loaders' queues at one time, in batches."""

    ready: int
    backlog: int  # requested, but not ready
    epochs: int  # number of epochs begun so far


def used_up(before: Queues, after: Queues) -> int:
    """Return the number of ready batches that a block of steps used up, negative if they grew; 0 if an epoch began."""
    if before.epochs != after.epochs:
        return 0
    taken, behind = before.ready - after.ready, after.backlog - before.backlog
    return min(taken, behind) if min(taken, behind) > 0 else min(0, max(taken, behind))


def now() -> Queues | None:
    """Return the state of the queues, or None if the system does not report queue sizes."""
    try:
        counts = [*map(_of_workers, list(_iterators)), *(one.counts() for one in list(_ahead))]
    except (RuntimeError, AttributeError, OSError):
        return None
    ready, asked = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return Queues(ready=ready, backlog=asked - ready, epochs=_epochs[0])


def patch() -> None:
    """Register every loader iterator that has workers when it begins an epoch."""
    from torch.utils.data import dataloader

    iterator = dataloader._MultiProcessingDataLoaderIter
    original = iterator._reset

    @functools.wraps(original)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        _follow(self, _iterators)
        return original(self, *args, **kwargs)

    hooks.install(iterator, "_reset", _reset)


def follow(batches: Any) -> None:
    """Register the batches that threads load in an epoch. Their `counts()` are (ready, requested) batches."""
    _follow(batches, _ahead)


def _follow(batches: Any, known: WeakSet[Any]) -> None:
    _epochs[0] += 1
    known.add(batches)


def _of_workers(iterator: Any) -> tuple[int, int]:
    results, handed = iterator._worker_result_queue, iterator._data_queue
    tasks = list(iterator._task_info.values())
    ready = int(results.qsize()) + (int(handed.qsize()) if handed is not results else 0)
    return ready + sum(len(task) > 1 for task in tasks), len(tasks)
