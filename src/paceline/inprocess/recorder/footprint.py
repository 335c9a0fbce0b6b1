"""The cost of recording: memory of the recorder, CUDA events and fork delays, with upper limits.

Memory is estimated from counts, because the allocator does not attribute memory to its users.
"""

from __future__ import annotations

from typing import Any

MOST_BYTES = 256 << 20
MOST_FORK_DELAY_S = 10.0  # total over all forks
_MOMENT_BYTES = 200  # a tuple and its numbers
_EVENT_BYTES = 1000  # a CUDA event in Python and in the driver


class Footprint:
    """Counts the memory and events that the recorder uses and the fork delays that it causes."""

    def __init__(self) -> None:
        self.forks = 0
        self.fork_delay_s = 0.0
        self.longest_fork_delay_s = 0.0
        self.moments = 0
        self.events = 0
        self.held_bytes = 0
        self.most_held_bytes = 0

    def delayed_fork(self, seconds: float) -> None:
        """Count a fork that waited for the recorder."""
        self.forks += 1
        self.fork_delay_s += seconds
        self.longest_fork_delay_s = max(self.longest_fork_delay_s, seconds)

    def holds(self, moments: int, events: int, other_bytes: int) -> None:
        """Record how many program events and CUDA events are unprocessed, and how many other bytes are in memory.

        Raises:
            MemoryError: The memory limit is exceeded, so recording must stop.
            TimeoutError: The limit of fork delays is exceeded, so recording must stop.
        """
        self.moments, self.events = moments, events
        self.held_bytes = moments * _MOMENT_BYTES + events * _EVENT_BYTES + other_bytes
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
        if self.held_bytes > MOST_BYTES:
            raise MemoryError(f"watching holds some {self.held_bytes >> 20} MiB, more than {MOST_BYTES >> 20} MiB")
        if self.fork_delay_s > MOST_FORK_DELAY_S:
            raise TimeoutError(f"watching delayed {self.forks} forks by {self.fork_delay_s:.1f} s")

    def as_json(self) -> dict[str, Any]:
        """Return all attributes of this object by name."""
        return vars(self).copy()
