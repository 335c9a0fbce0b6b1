"""What does a `for` loop go over? The batches of one epoch, which end with the loop, however that ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Any

from paceline.core.forks import keep_in_children

_HANDED = 8  # one batch in so many whose handing over is timed


class Batches:
    """An epoch in the middle of a loop. What ends the loop, or lets go of this, lets go of threads and files."""

    def __init__(self, made: Generator[Any], handed: Callable[[float, Any], None]) -> None:
        """Begin an epoch.

        Args:
            made: Its batches.
            handed: Is told what the training's own thread spent in taking one, in CPU seconds; of some batches.
        """
        self._made = made
        self._handed = handed
        self._taken = 0
        self._pid = os.getpid()
        keep_in_children(self)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        return self._next_data()

    def _next_data(self) -> Any:
        """Wait for the next batch; named as in torch's own iterators, by which `paceline run` knows them."""
        self._taken += 1
        if self._taken % _HANDED:
            return next(self._made)
        begun = time.thread_time()
        batch = next(self._made)
        self._handed(time.thread_time() - begun, batch)
        return batch

    def close(self) -> None:
        """End the epoch here. Does nothing in a forked child: the threads and files are its parent's."""
        if os.getpid() == self._pid:
            self._made.close()
