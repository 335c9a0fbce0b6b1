"""The iterator of a loader over the batches of one epoch; threads and files are released when the loop ends."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import Any
from weakref import WeakSet

from paceline.core.errors import UsageError
from paceline.core.forks import keep_in_children

_HANDED = 8  # one batch in eight is timed


class LoaderIterator:
    """A loop over an epoch. The end of the loop, or the deletion of this object, releases threads and files."""

    def __init__(self, made: Generator[Any], handed: Callable[[float, Any], None]) -> None:
        """Create a loop over the batches of one epoch.

        Args:
            made: Yields the batches of the epoch.
            handed: Is called for some batches, with the CPU seconds that the training's thread spent on taking the
                batch, and with the batch.
        """
        self._made = made
        self._handed = handed
        self._taken = 0
        self._pid = os.getpid()
        self._ended, self._replaced_by = False, ""
        keep_in_children(self)
        _open.add(self)

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        return self._next_data()

    def _next_data(self) -> Any:
        """Wait for the next batch. `paceline run` finds this method by its name, which torch's iterators also use."""
        self._taken += 1
        begun = 0.0 if self._taken % _HANDED else time.thread_time()
        try:
            batch = next(self._made)
        except StopIteration:
            if self._replaced_by and not self._ended:
                raise UsageError(
                    f"{self._replaced_by} ended this loop; for two loops at a time, as in zip(loader, loader), create "
                    "two Loaders"
                ) from None
            self._ended = True
            raise
        if not self._taken % _HANDED:
            self._handed(time.thread_time() - begun, batch)
        return batch

    @property
    def is_begun(self) -> bool:
        """Whether a batch was taken and the loop has not ended."""
        return getgeneratorstate(self._made) == GEN_SUSPENDED

    def replace(self, by: str) -> None:
        """End the loop. A later call of `next` raises an error.

        Args:
            by: The cause, for the error.
        """
        self._replaced_by = by
        self.close()

    def close(self) -> None:
        """End the loop. This does nothing in a forked child, as the threads and files belong to the parent."""
        if os.getpid() == self._pid:
            self._made.close()


def _close_all() -> None:
    """End the loops that are open when the program ends, while modules such as torch still exist."""
    loops = list(_open)
    for loop in loops:
        with suppress(ValueError):  # a daemon thread takes a batch at this moment
            loop.close()


_open: WeakSet[LoaderIterator] = WeakSet()
atexit.register(_close_all)
