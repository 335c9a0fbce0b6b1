"""loader.threads: batches are made ahead in threads of the training process, in order.

For samples that wait, or whose work lets the interpreter go (decoders, numpy on large arrays): nothing is pickled and
nothing copied between processes. The sampler is asked in the training thread, so its order is what it was.
"""

from __future__ import annotations

import functools
import io
import tarfile
import threading
from collections import deque
from typing import Any
from weakref import finalize

from paceline.improve.child import held, queues
from paceline.observe.probe import loaders

_AHEAD = 2  # batches per thread that are made before they are asked for
_NAME = "paceline-fetch"
_PARTS = 64  # of a dataset made of others, that are looked at


def patch(torch: Any, threads: int) -> None:
    """Have every loader without workers use so many threads."""
    from torch.utils.data import dataloader

    iterator = dataloader._SingleProcessDataLoaderIter
    original = iterator._next_data

    @functools.wraps(original)
    def _next_data(self: Any) -> Any:
        if self._dataset_kind != dataloader._DatasetKind.Map:
            held.refused("loader.threads", "the dataset is an IterableDataset, which only one reader can iterate")
            return original(self)
        batches = vars(self).get("_paceline_batches")
        if batches is None:
            shared = one_reader(self._dataset_fetcher.dataset)
            if shared:
                held.refused(
                    "loader.threads",
                    f"the dataset reads from one open {shared}, and only one thread at a time can use it",
                )
                return original(self)
            batches = self._paceline_batches = _Ahead(self, threads)
            loaders.detail(self, "threads", threads)
            held.took("loader.threads", f"{threads} threads load batches")
        data = batches.next()
        if self._pin_memory:
            data = dataloader._utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    iterator._next_data = _next_data


def beside_training() -> bool:
    """Return whether the caller is a thread that makes batches while the training thread goes on."""
    return threading.current_thread().name.startswith(_NAME)


def one_reader(dataset: Any, depth: int = 3) -> str | None:
    """Return what kind of open file a dataset holds, whose place threads would move under each other; None: none."""
    for value in getattr(dataset, "__dict__", {}).values():
        if isinstance(value, tarfile.TarFile) or (
            isinstance(value, io.IOBase) and not value.closed and value.readable()
        ):
            return type(value).__name__
        inner = value if isinstance(value, list | tuple) and len(value) <= _PARTS else [value]
        if depth:
            found = [one_reader(one, depth - 1) for one in inner if hasattr(one, "__getitem__")]
            if any(found):
                return next(kind for kind in found if kind)
    return None


class _Ahead:
    """The batches of one epoch, made ahead."""

    def __init__(self, iterator: Any, threads: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=_NAME)
        self._fetch = iterator._dataset_fetcher.fetch
        self._next_index = iterator._next_index
        self._most = _AHEAD * threads
        self._making: deque[Any] = deque()
        self._more = True
        queues.follow(self)
        finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)  # an epoch that is left early: no more

    def counts(self) -> tuple[int, int]:
        """Return how many batches are made and not taken, and how many are asked for and not taken."""
        making = list(self._making)
        return sum(future.done() for future in making), len(making)

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: There is no more.
        """
        while self._more and len(self._making) <= self._most:
            try:
                index = self._next_index()
            except StopIteration:
                self._more = False
            else:
                self._making.append(self._pool.submit(self._fetch, index))
        if not self._making:
            self._pool.shutdown(wait=False)
            raise StopIteration
        return self._making.popleft().result()
