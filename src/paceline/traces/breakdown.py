"""What did a GPU do in a window? Idle, compute, communication, copies, and what of the latter two was exposed.

Of the GPU events in a window, with K compute, C communication and M copies:

    span = last end - first start        busy = |K + C + M|        idle = span - busy
    exposed communication = |K + C| - |K|        exposed copies = busy - |K + C|        overlap = |K| + |C| - |K + C|

so that idle + compute + exposed communication + exposed copies = span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.traces.classes import is_transfer
from paceline.traces.intervals import Union, merged, union_of
from paceline.traces.model import COMMUNICATION, COMPUTE, COPY, GpuEvents


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Nanoseconds of one GPU, in a window."""

    events: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int
    exposed_transfer_ns: int = 0  # of the exposed copies: those that certainly are from or to the host

    @property
    def idle_ns(self) -> int:
        """Between the first event and the last, when nothing ran."""
        return self.span_ns - self.busy_ns

    @property
    def overlap_ns(self) -> int:
        """Communication behind compute."""
        return self.communication_ns - self.exposed_communication_ns


def broken_down(events: GpuEvents) -> Breakdown:
    """Break down the GPU events of a window; all zero where there is none."""
    compute, communication, copies = (_union(events, class_) for class_ in (COMPUTE, COMMUNICATION, COPY))
    both = merged(compute, communication)
    busy = merged(both, copies)
    between = np.array([is_transfer(name) for name in events.names], bool)[events.name]
    within = merged(both, _union_of(events, ~between & (events.class_ == COPY)))
    return Breakdown(
        events=len(events),
        span_ns=int(events.end_ns.max() - events.start_ns.min()) if len(events) else 0,
        busy_ns=busy.length_ns,
        compute_ns=compute.length_ns,
        communication_ns=communication.length_ns,
        exposed_communication_ns=both.length_ns - compute.length_ns,
        copy_ns=copies.length_ns,
        exposed_copy_ns=busy.length_ns - both.length_ns,
        exposed_transfer_ns=busy.length_ns - within.length_ns,
    )


def _union(events: GpuEvents, class_: int) -> Union:
    return _union_of(events, events.class_ == class_)


def _union_of(events: GpuEvents, wanted: NDArray[np.bool_]) -> Union:
    chosen = np.flatnonzero(wanted)
    return union_of(events.start_ns[chosen], events.end_ns[chosen])
