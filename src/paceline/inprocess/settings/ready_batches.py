"""How many batches that lay ready did a block of steps use up?

Loaders with workers keep ready batches in the queue of results, in that of the pinning thread, and out of order in the
table of tasks; loaders with threads in futures. What is asked for and not made yet is the backlog. Steps that take
ready batches while the backlog grows are faster than the loader can make batches. At the end of an epoch nothing more
is asked for, so the backlog does not grow; and a block in which an epoch begins is not judged.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from paceline.inprocess import hooks

_iterators: WeakSet[Any] = WeakSet()
_ahead: WeakSet[Any] = WeakSet()
_epochs: list[int] = [0]  # that have begun


@dataclass(frozen=True, kw_only=True)
class Queues:
    """The loaders' queues at one moment, in batches."""

    ready: int
    backlog: int  # asked for, and not made yet
    epochs: int  # that have begun so far


def used_up(before: Queues, after: Queues) -> int:
    """Return how many batches a block took from the queues, less what was added; 0 if an epoch began."""
    if before.epochs != after.epochs:
        return 0
    taken, behind = before.ready - after.ready, after.backlog - before.backlog
    return min(taken, behind) if min(taken, behind) > 0 else min(0, max(taken, behind))


def now() -> Queues | None:
    """Return the state of the queues; None where the system cannot tell it."""
    try:
        counts = [*map(_of_workers, list(_iterators)), *(one.counts() for one in list(_ahead))]
    except (RuntimeError, AttributeError, OSError):
        return None
    ready, asked = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return Queues(ready=ready, backlog=asked - ready, epochs=_epochs[0])


def patch() -> None:
    """Remember every iterator with workers that begins an epoch from now on."""
    from torch.utils.data import dataloader

    iterator = dataloader._MultiProcessingDataLoaderIter
    original = iterator._reset

    @functools.wraps(original)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        _follow(self, _iterators)
        return original(self, *args, **kwargs)

    hooks.install(iterator, "_reset", _reset)


def follow(batches: Any) -> None:
    """Remember the batches that threads make in an epoch; its `counts()` are those ready and those asked for."""
    _follow(batches, _ahead)


def _follow(batches: Any, known: WeakSet[Any]) -> None:
    _epochs[0] += 1
    known.add(batches)


def _of_workers(iterator: Any) -> tuple[int, int]:
    results, handed = iterator._worker_result_queue, iterator._data_queue
    tasks = list(iterator._task_info.values())
    ready = int(results.qsize()) + (int(handed.qsize()) if handed is not results else 0)
    return ready + sum(len(task) > 1 for task in tasks), len(tasks)
