"""The launch queue of a GPU: how long launched work waits before it starts, and how much work is queued.

Work is queued from the start of its launch until it starts itself. A launch is late if the queue is empty and the GPU
is idle, so that the GPU waits for the host. `IN_A_ROW` or more consecutive late launches of short work are
launch-bound: launches of a few microseconds each cannot keep the GPU busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.traces.capture import NO_LAUNCH_NS, GpuEvents, Launches, launched_at
from paceline.traces.intervals import Ns

IN_A_ROW = 8  # least number of consecutive late launches of short work in a launch-bound stretch
SHORT_NS = 100_000  # longer work gives the host time for ten launches


@dataclass(frozen=True, kw_only=True)
class LaunchQueue:
    """Statistics of the launch queue in a window, for GPU events with a known launch."""

    launched: int
    delay_median_ns: int | None  # from the start of a launch to the start of its work; None without launches
    delay_high_ns: int | None  # the 95th percentile of the delay
    waiting_median: int | None  # pieces of work that are queued when another one is launched
    waiting_most: int | None
    late: int  # launches that an idle GPU waited for
    stretches: int  # launch-bound stretches: `IN_A_ROW` or more consecutive late launches
    bound_ns: int  # total time of these stretches


NOTHING = LaunchQueue(
    launched=0, delay_median_ns=None, delay_high_ns=None, waiting_median=None, waiting_most=None,
    late=0, stretches=0, bound_ns=0,
)  # fmt: skip


def queue_of(events: GpuEvents, launches: Launches) -> LaunchQueue:
    """Return the statistics of the launch queue in a window."""
    at = launched_at(events.correlation, launches)
    known = at != NO_LAUNCH_NS
    if not known.any():
        return NOTHING
    delays = np.maximum(events.start_ns[known] - at[known], 0)  # clocks of host and GPU differ by about 1 us
    waiting = _waiting(at[known], events.start_ns[known])
    late, short, begins, ends = _late(events, at)
    stretches = _runs(late & short)
    return LaunchQueue(
        launched=int(known.sum()),
        delay_median_ns=_quantile(delays, 0.5),
        delay_high_ns=_quantile(delays, 0.95),
        waiting_median=_quantile(waiting, 0.5),
        waiting_most=int(waiting.max()),
        late=int(late.sum()),
        stretches=len(stretches),
        bound_ns=sum(int(ends[last] - begins[first]) for first, last in stretches),
    )


def _quantile(values: NDArray[np.int64], share: float) -> int:
    """Return a quantile: the smallest value such that at least this share of the values is not above it."""
    place = max(0, math.ceil(share * len(values)) - 1)
    return int(np.partition(values, place)[place])


def _waiting(at: Ns, starts: Ns) -> NDArray[np.int64]:
    """Return for each launch the number of GPU events that are queued at that time."""
    at = np.sort(at)
    begun = np.searchsorted(np.sort(starts), at, side="right")
    waiting: NDArray[np.int64] = np.maximum(np.searchsorted(at, at, side="left") - begun, 0)
    return waiting


def _late(events: GpuEvents, at: Ns) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Ns, Ns]:
    """Return four arrays for the events, which are ordered by start.

    They are: whether an idle GPU waited for the launch, whether the event is short, since when the GPU was
    free, and the end of the event.
    """
    order = np.argsort(events.start_ns, kind="stable")
    starts, ends, at = events.start_ns[order], events.end_ns[order], at[order]
    free = np.append(starts[:1], np.maximum.accumulate(ends)[:-1])  # when all earlier events had ended
    late = (at != NO_LAUNCH_NS) & (at >= free) & (starts > free)
    return late, ends - starts < SHORT_NS, np.minimum(free, starts), ends


def _runs(late: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and the last index of each sequence of `IN_A_ROW` or more consecutive true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], late, [False]])))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2) if b - a >= IN_A_ROW]
