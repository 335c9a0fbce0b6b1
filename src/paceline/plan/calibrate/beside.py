"""What does a thread that works beside cost the training? It burns for some of the time, and counts what it had."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK = bytes(range(256)) * 1024  # is compressed in about as long as a picture is decoded
_IDLE = 1.5  # s of sleep for one at work: beside most trainings, loaders are not the limit


class Burner:
    """A thread that compresses, without Python's lock, for two fifths of the time where nobody disturbs it."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._burn, daemon=True)

    def _burn(self) -> None:
        while not self._over.is_set():
            at = time.thread_time()
            zlib.compress(_CHUNK, 6)
            took = time.thread_time() - at
            self.cpu_s += took
            self._over.wait(_IDLE * took)

    @contextmanager
    def burning(self) -> Iterator[None]:
        """Have it at work inside."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()
