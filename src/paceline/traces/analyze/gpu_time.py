"""GPU time in a window (a selection of the GPU events) of a capture: by class, and by kernel.

Windows:

``all``      every GPU event of the file.
``hta``      the events that HolisticTraceAnalysis 0.5 uses. With two or more marked steps: events that were launched
             before the last step began; events without a launch and the last step are left out. Classes follow the
             name patterns of HolisticTraceAnalysis.
``steps``    events that were launched within marked steps, and events without a launch that are between the first and
             the last of these.

Let K, C and M be the compute, communication and copy events of a window, and |A| the length of the union of A:

    span = last end - first start        busy = |K + C + M|        idle = span - busy
    exposed communication = |K + C| - |K|        exposed copies = busy - |K + C|        overlap = |K| + |C| - |K + C|

It follows that idle + compute + exposed communication + exposed copies = span.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.traces import WINDOWS
from paceline.traces.capture import COMMUNICATION, COMPUTE, COPY, Capture, GpuEvents
from paceline.traces.intervals import Union, union_of, union_of_unions
from paceline.traces.read.event_classes import hta_class_of, is_transfer


def events_in(capture: Capture, window: str) -> GpuEvents:
    """Return the GPU events of a window.

    Raises:
        UsageError: There is no window of this name.
    """
    if window == "all":
        return capture.events
    if window == "hta":
        return _as_hta(capture)
    if window == "steps":
        return _in_steps(capture)
    raise UsageError(f"unknown window {window!r}; the known windows are {', '.join(WINDOWS)}")


def steps_in(capture: Capture, window: str) -> int:
    """Return the number of marked steps in a window; 0 if none are marked."""
    marked = len({step.name for step in capture.steps})
    return marked - 1 if window == "hta" and marked >= 2 else marked


def _as_hta(capture: Capture) -> GpuEvents:
    events = capture.events
    if len({step.name for step in capture.steps}) >= 2:
        before = max(step.start_ns for step in capture.steps)
        events = events.where(_launched(capture, capture.launches.start_ns < before))
    classes = np.array([hta_class_of(name) for name in events.names], np.uint8)
    return replace(events, class_=classes[events.name] if len(events) else events.class_)


def _in_steps(capture: Capture) -> GpuEvents:
    if not capture.steps:
        return capture.events
    at = capture.launches.start_ns
    inside = np.zeros(len(at), bool)
    for step in capture.steps:
        inside |= (at >= step.start_ns) & (at < step.end_ns)
    events = capture.events
    chosen = _launched(capture, inside)
    if chosen.any():
        first, last = events.start_ns[chosen].min(), events.end_ns[chosen].max()
        unlaunched = ~_launched(capture, np.ones(len(at), bool))
        chosen |= unlaunched & (events.start_ns >= first) & (events.end_ns <= last)
    return events.where(chosen)


def _launched(capture: Capture, by: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each GPU event whether one of the selected launches launched it."""
    known = capture.launches.correlation[by]
    return np.isin(capture.events.correlation, known[known >= 0])


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """GPU time in a window by class, in nanoseconds."""

    events: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int
    exposed_transfer_ns: int = 0  # exposed copies that are certainly from or to the host

    @property
    def idle_ns(self) -> int:
        """Return the nanoseconds between the first and the last event during which no event ran."""
        return self.span_ns - self.busy_ns

    @property
    def overlap_ns(self) -> int:
        """Return the nanoseconds of communication that overlaps with compute."""
        return self.communication_ns - self.exposed_communication_ns


def break_down(events: GpuEvents) -> Breakdown:
    """Return the GPU time of a window by class; all values are zero without events."""
    compute, communication, copies = (
        _union_of(events, events.class_ == class_) for class_ in (COMPUTE, COMMUNICATION, COPY)
    )
    both = union_of_unions(compute, communication)
    busy = union_of_unions(both, copies)
    between = np.array([is_transfer(name) for name in events.names], bool)[events.name]
    within = union_of_unions(both, _union_of(events, ~between & (events.class_ == COPY)))
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


def _union_of(events: GpuEvents, wanted: NDArray[np.bool_]) -> Union:
    chosen = np.flatnonzero(wanted)
    return union_of(events.start_ns[chosen], events.end_ns[chosen])


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """All GPU events with the same name in a window; times are in nanoseconds."""

    name: str
    class_: int  # an index in `CLASSES`
    count: int
    total_ns: int
    max_ns: int

    @property
    def mean_ns(self) -> float:
        """Return the mean duration of an event in nanoseconds."""
        return self.total_ns / self.count


def kernels_of(events: GpuEvents) -> list[Kernel]:
    """Return the kernels, copies and memory sets of a window, summed by name, by descending total time."""
    if not len(events):
        return []
    lasted = np.maximum(events.end_ns - events.start_ns, 0)
    order = np.argsort(events.name, kind="stable")
    names = events.name[order]
    begins = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    columns = (
        names[begins],
        events.class_[order[begins]],
        np.diff(np.append(begins, len(names))),
        np.add.reduceat(lasted[order], begins),
        np.maximum.reduceat(lasted[order], begins),
    )
    found = [
        Kernel(name=events.names[name], class_=class_, count=count, total_ns=total, max_ns=most)
        for name, class_, count, total, most in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_ns, kernel.name))
