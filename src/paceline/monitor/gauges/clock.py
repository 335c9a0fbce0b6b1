"""The clocks of a sampler, behind one interface so that tests can replace them."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The times that a sampler reads."""

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds."""

    def unix_s(self) -> float:
        """Return the wall-clock time in seconds."""

    def own_cpu_s(self) -> float:
        """Return the CPU time that this thread has used, in seconds."""


class SystemClock:
    """The clocks of this host."""

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds."""
        return time.monotonic_ns()

    def unix_s(self) -> float:
        """Return the wall-clock time in seconds."""
        return time.time()

    def own_cpu_s(self) -> float:
        """Return the CPU time that this thread has used, in seconds."""
        return time.thread_time()
