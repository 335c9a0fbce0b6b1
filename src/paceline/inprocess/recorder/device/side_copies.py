"""Copies to a GPU on a stream beside the one that computes: how many there are, and how long they take.

A prefetcher makes such copies. A copy takes no time of the step unless the computing stream has to wait for it. Copies
are timed by a pair of events on their own stream, at most one copy in ten milliseconds.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Any

from paceline.inprocess.recorder.device.cuda_events import CudaEvents

_TIME_EVERY_NS = 10_000_000  # a pair of events takes some 10 µs of the training thread: 0.1%
_MOST_OPEN = 256  # pairs that the device has not passed
_MOST_STREAMS = 64  # torch's pool has 32 a device and priority


class OverlappedCopies:
    """Counts and times copies beside the computing stream. The training thread calls all but `poll` and `as_json`."""

    def __init__(self, events: CudaEvents) -> None:
        self._events = events
        self._streams: set[int] = set()  # on which copies were seen
        self._open: deque[tuple[Any, Any]] = deque()
        self._timed_at_ns = 0
        self._count = 0
        self._timed = 0
        self._ns = 0
        self._off: str | None = None

    def is_beside(self) -> bool:
        """Say whether a copy that begins now is on another stream than the one that computes."""
        try:
            stream = self._events.beside() if self._off is None else None
        except Exception as error:
            self._stop(error)
            return False
        if stream is not None and len(self._streams) < _MOST_STREAMS:
            self._streams.add(stream)
        return stream is not None

    def are_awaited(self, waiting: Any, awaited: Any) -> bool:
        """Say whether the computing stream waits for a stream on which copies were made."""
        if not self._streams or self._off is not None or awaited is None:
            return False
        return awaited.cuda_stream in self._streams and self._events.computes(waiting)

    def begin(self) -> Any:
        """Count a copy; return an event at its beginning if this one is timed, else None."""
        self._count += 1
        now = perf_counter_ns()
        if now - self._timed_at_ns < _TIME_EVERY_NS or len(self._open) >= _MOST_OPEN:
            return None
        self._timed_at_ns = now
        return self._record()

    def end(self, begun: Any) -> None:
        """Put an event behind a copy that is timed."""
        ended = self._record()
        if ended is not None:
            self._open.append((begun, ended))

    def _record(self) -> Any:
        try:
            return self._events.record_beside()
        except Exception as error:  # never the program's trouble: its copies are not timed
            self._stop(error)
            return None

    def _stop(self, error: Exception) -> None:
        self._off = self._off or f"{type(error).__name__}: {error}"

    def poll(self) -> None:
        """Add up the pairs of events that the device has passed. Called by the recorder."""
        try:
            while self._open and self._off is None and self._events.query(self._open[0][1]):
                begun, ended = self._open.popleft()
                passed = self._events.elapsed_ns(begun, ended)
                if passed is not None:
                    self._timed += 1
                    self._ns += passed
                self._events.recycle(begun)
                self._events.recycle(ended)
        except Exception as error:
            self._stop(error)

    def as_json(self) -> dict[str, Any]:
        """Return how many copies there were, how many were timed, and how long those took together."""
        return {"count": self._count, "timed": self._timed, "timed_s": self._ns / 1e9, "off": self._off}
