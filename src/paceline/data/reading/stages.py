"""The CPU and wall time of each stage of making samples, measured on some batches and summed over all threads.

Reading a thread's CPU clock costs about as much as cropping an image, so only one batch in eight is timed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STAGES = ("fetch", "read", "lookup", "decode", "transform", "collate", "batch transform", "hand-over", "copy")
_TIMED = 8  # one batch in eight


@dataclass(kw_only=True)
class Spent:
    """The time of a stage in the timed batches."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    samples: int = 0

    def add(self, wall_s: float, cpu_s: float, samples: int) -> None:
        """Add the time of a number of samples."""
        self.wall_s += wall_s
        self.cpu_s += cpu_s
        self.samples += samples


class Lap:
    """Times the stages of one batch in one thread."""

    def __init__(self) -> None:
        self.spent: dict[str, Spent] = {}
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def mark(self, stage: str, samples: int = 1) -> None:
        """Add the time since the last mark to a stage.

        Args:
            stage: One of `STAGES`.
            samples: How many samples went through the stage.
        """
        wall, cpu = time.perf_counter(), time.thread_time()
        self.spent.setdefault(stage, Spent()).add(wall - self._wall, cpu - self._cpu, samples)
        self._wall, self._cpu = wall, cpu


class NoLap(Lap):
    """Replaces `Lap` for a batch that is not timed."""

    def __init__(self) -> None:
        self.spent = {}

    def mark(self, stage: str, samples: int = 1) -> None:
        """Do nothing."""


class StageClock:
    """Sums the times of stages; several threads can use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent: dict[str, Spent] = {}
        self._batches = 0

    @contextmanager
    def batch(self) -> Iterator[Lap]:
        """Return a context for making a batch. Every eighth batch is timed, and its times are added at the end."""
        with self._lock:
            timed = self._batches % _TIMED == 0
            self._batches += 1
        lap = Lap() if timed else NoLap()
        try:
            yield lap
        finally:
            for stage, spent in lap.spent.items():
                self.add(stage, spent)

    def add(self, stage: str, spent: Spent) -> None:
        """Add a time to a stage."""
        with self._lock:
            self._spent.setdefault(stage, Spent()).add(spent.wall_s, spent.cpu_s, spent.samples)

    def forget(self) -> None:
        """Discard all times."""
        with self._lock:
            self._spent.clear()
            self._batches = 0

    def spent(self) -> dict[str, Spent]:
        """Return the time of each stage so far, in the order of `STAGES`."""
        with self._lock:
            found = {name: Spent(**vars(spent)) for name, spent in self._spent.items()}
        return dict(sorted(found.items(), key=lambda item: STAGES.index(item[0]) if item[0] in STAGES else len(STAGES)))
