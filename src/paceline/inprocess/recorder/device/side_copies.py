"""Count and time copies to a GPU on other streams than the computing stream.

A prefetcher makes such copies. A copy delays the step only if the computing stream has to wait for it. Copies are timed
by a pair of events on their own stream, at most one copy in 10 ms.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Any

from paceline.inprocess.recorder.device.cuda_events import CudaEvents

_TIME_EVERY_NS = 10_000_000  # a pair of events takes about 10 µs of the training thread: 0.1%
_MOST_OPEN = 256  # event pairs that the device has not passed
_MOST_STREAMS = 64  # torch's pool has 32 per device and priority


class OverlappedCopies:
    """Counts and times copies on side streams. The training thread calls all methods except `poll` and `as_json`."""

    def __init__(self, events: CudaEvents) -> None:
        self._events = events
        self._streams: set[int] = set()  # streams on which copies were seen
        self._open: deque[tuple[Any, Any]] = deque()
        self._timed_at_ns = 0
        self._count = 0
        self._timed = 0
        self._ns = 0
        self._off: str | None = None

    def is_beside(self) -> bool:
        """Return whether a copy that starts now is on another stream than the computing stream."""
        try:
            stream = self._events.beside() if self._off is None else None
        except Exception as error:
            self._stop(error)
            return False
        if stream is not None and len(self._streams) < _MOST_STREAMS:
            self._streams.add(stream)
        return stream is not None

    def are_awaited(self, waiting: Any, awaited: Any) -> bool:
        """Return whether the computing stream waits for a stream with copies."""
        if not self._streams or self._off is not None or awaited is None:
            return False
        return awaited.cuda_stream in self._streams and self._events.computes(waiting)

    def begin(self) -> Any:
        """Count a copy; return an event at its start if this copy is timed, else None."""
        self._count += 1
        now = perf_counter_ns()
        if now - self._timed_at_ns < _TIME_EVERY_NS or len(self._open) >= _MOST_OPEN:
            return None
        self._timed_at_ns = now
        return self._record()

    def end(self, begun: Any) -> None:
        """Record the event at the end of a timed copy."""
        ended = self._record()
        if ended is not None:
            self._open.append((begun, ended))

    def _record(self) -> Any:
        try:
            return self._events.record_beside()
        except Exception as error:  # the error must not reach the program; its copies are not timed
            self._stop(error)
            return None

    def _stop(self, error: Exception) -> None:
        self._off = self._off or f"{type(error).__name__}: {error}"

    def poll(self) -> None:
        """Sum the durations of the event pairs that the device has passed. The recorder calls this method."""
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
        """Return the number of copies, the number of timed copies, and the total duration of the timed ones."""
        return {"count": self._count, "timed": self._timed, "timed_s": self._ns / 1e9, "off": self._off}
