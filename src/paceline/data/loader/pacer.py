"""Measurement of a loader in windows of at least half a second, and its tuning by the rules of `tuning`.

The time of a window is the sum of the waits plus the number of batches times the median time of the training between
two batches. So the time of checkpoints and evaluations is left out.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from paceline.data.loader.tuning import Bounds, Pace, Tuning, Window, slowed, tuned
from paceline.hardware.host import host_busy_s

_LEAST_S = 0.5  # the shortest window
_LEAST_BATCHES = 4  # the fewest of a window, in addition to the batches made ahead


class AutoPacer:
    """Measures a loader and adjusts its threads, readers and ready batches."""

    def __init__(self, bounds: Bounds, begin: Pace, spare_cores: float, changed: Callable[[Pace], None]) -> None:
        """Start to measure a loader at a first pace.

        Args:
            bounds: The limits of the pace.
            begin: The first pace.
            spare_cores: The cores of this host outside of this rank's share, which other processes may use.
            changed: Is called with each new pace, in the thread that takes batches.
        """
        self._bounds, self._spare, self._changed = bounds, spare_cores, changed
        self._lock = threading.Lock()
        self.tuning = Tuning(pace=begin)
        self.batches, self.waited_s, self.wall_s = 0, 0.0, 0.0  # sums over all windows
        self._made, self._making_s, self._reading_s = 0, 0.0, 0.0
        self._last: float | None = None
        self._begin()

    @property
    def pace(self) -> Pace:
        """The current numbers of threads, readers and ready batches."""
        return self.tuning.pace

    @property
    def bounds(self) -> Bounds:
        """The limits of the numbers of threads, readers and ready batches."""
        return self._bounds

    def bind(self, bounds: Bounds) -> None:
        """Set new limits, and reduce the numbers of threads, readers and ready batches to them."""
        self._bounds = bounds
        slower = slowed(self.pace, bounds.most)
        if slower != self.pace:
            self.tuning = Tuning(pace=slower, rests=self.tuning.rests, changes=self.tuning.changes)
            self._changed(slower)

    def loop(self) -> None:
        """Note that a loop begins; the wait for its first batch does not count."""
        self._last = None

    def made(self, seconds: float) -> None:
        """Add the time in which a thread made a batch."""
        with self._lock:
            self._made += 1
            self._making_s += seconds

    def read(self, waited_s: float) -> None:
        """Add the time in which a thread waited for blocks."""
        with self._lock:
            self._reading_s += waited_s

    def taken(self, waited_s: float) -> None:
        """Note that the training took a batch after a wait, and end the window of measurements if it is long enough."""
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
        """Start a window of measurements."""
        self._waits: list[float] = []
        self._own: list[float] = []  # seconds of the training between two batches
        self._lasted, self._skipped = 0.0, 0
        self._begun = time.perf_counter()
        self._cpu_before = host_busy_s(), time.process_time()
        with self._lock:
            self._seen_before = self._made, self._making_s, self._reading_s

    def _end(self) -> None:
        """End a window of measurements, and set the pace for the next window."""
        before, seen = self.pace, self._window()
        self.batches, self.waited_s = self.batches + seen.batches, self.waited_s + seen.waited_s
        self.wall_s += seen.wall_s
        self.tuning = tuned(self.tuning, seen, self._bounds)
        self._begin()
        if self.pace != before:
            self._changed(self.pace)
            self._skipped = max(before.threads, self.pace.threads)  # batches that were started at the previous pace

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
