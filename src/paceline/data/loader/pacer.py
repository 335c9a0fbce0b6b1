"""Observes a loader at work in windows of about a second: waits, and what threads do. `tuning` decides what follows.

A window's time is that of the waits, and as many medians of what the training took between two batches: that it saved
or evaluated meanwhile is left out.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from paceline.data.loader.tuning import Bounds, Pace, Tuning, Window, slowed, tuned
from paceline.hardware.host import host_busy_s

_LEAST_S = 0.5  # of a window
_LEAST_BATCHES = 4  # beside those that are ahead


class AutoPacer:
    """Sets the pace of a loader from what it sees of it."""

    def __init__(self, bounds: Bounds, begin: Pace, spare_cores: float, changed: Callable[[Pace], None]) -> None:
        """Begin at a pace.

        Args:
            bounds: Between what the pace may be.
            begin: The first.
            spare_cores: Of this host, beyond our share of it: others may be busy on them.
            changed: Is told each new pace, in the thread that takes batches.
        """
        self._bounds, self._spare, self._changed = bounds, spare_cores, changed
        self._lock = threading.Lock()
        self.tuning = Tuning(pace=begin)
        self.batches, self.waited_s, self.wall_s = 0, 0.0, 0.0  # of all windows
        self._made, self._making_s, self._reading_s = 0, 0.0, 0.0
        self._last: float | None = None
        self._begin()

    @property
    def pace(self) -> Pace:
        """The pace now."""
        return self.tuning.pace

    @property
    def bounds(self) -> Bounds:
        """Between what the pace may be."""
        return self._bounds

    def bind(self, bounds: Bounds) -> None:
        """Set other bounds, and slow down to them."""
        self._bounds = bounds
        slower = slowed(self.pace, bounds.most)
        if slower != self.pace:
            self.tuning = Tuning(pace=slower, rests=self.tuning.rests, changes=self.tuning.changes)
            self._changed(slower)

    def loop(self) -> None:
        """Hear that a loop begins: its first wait is that of a start."""
        self._last = None

    def made(self, seconds: float) -> None:
        """Count the time of a thread that made a batch."""
        with self._lock:
            self._made += 1
            self._making_s += seconds

    def read(self, waited_s: float) -> None:
        """Count the time in which a thread waited for blocks."""
        with self._lock:
            self._reading_s += waited_s

    def taken(self, waited_s: float) -> None:
        """Hear that a batch was taken, and how long it was waited for."""
        now, last = time.perf_counter(), self._last
        self._last = now
        if last is None:
            return
        if self._skipped:
            self._skipped -= 1
            if not self._skipped:
                self._begin()
            return
        self._own.append(max(0.0, now - last - waited_s))
        self._waits.append(waited_s)
        self._lasted += now - last
        if self._lasted >= _LEAST_S and len(self._own) >= self.pace.ahead + _LEAST_BATCHES:
            self._end()

    def _begin(self) -> None:
        """Begin a window."""
        self._waits: list[float] = []
        self._own: list[float] = []  # seconds of the training between two batches
        self._lasted, self._skipped = 0.0, 0
        self._begun = time.perf_counter()
        self._cpu_before = host_busy_s(), time.process_time()
        with self._lock:
            self._seen_before = self._made, self._making_s, self._reading_s

    def _end(self) -> None:
        """Draw a window to its end, and set the pace for the next one."""
        before, seen = self.pace, self._window()
        self.batches, self.waited_s = self.batches + seen.batches, self.waited_s + seen.waited_s
        self.wall_s += seen.wall_s
        self.tuning = tuned(self.tuning, seen, self._bounds)
        self._begin()
        if self.pace != before:
            self._changed(self.pace)
            self._skipped = max(before.threads, self.pace.threads)  # batches that were begun at the pace before

    def _window(self) -> Window:
        elapsed = time.perf_counter() - self._begun
        waited = sum(self._waits)
        busy, own = host_busy_s() - self._cpu_before[0], time.process_time() - self._cpu_before[1]
        made, making, reading = self._seen_before
        with self._lock:
            return Window(
                batches=len(self._own),
                wall_s=waited + len(self._own) * statistics.median(self._own),
                waited_s=waited,
                made=self._made - made,
                making_s=self._making_s - making,
                reading_s=self._reading_s - reading,
                crowded=max(0.0, (busy - own) / elapsed - self._spare),
            )
