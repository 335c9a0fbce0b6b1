"""The critical path of a capture: consecutive segments that cover its time; each is the cause of the next.

The path is built backwards from the end. GPU work starts because earlier work ended, or, on an idle GPU, because the
host launched it; before a launch the path is on the host. The host was either busy, or in a call that waited for GPU
work; then the path continues with this work. Each nanosecond belongs to one segment, so the segments sum to the whole
time.

All host threads count as one: in PyTorch, the thread of the program waits while the thread of the backward pass
launches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.traces.capture import CLASSES, NO_LAUNCH_NS, Capture, GpuEvents, launched_at
from paceline.traces.intervals import Ns, Union, difference, intersection, union_of

# Kinds of pieces: the classes of GPU events, then the pieces that run on no GPU.
COMPUTE, COMMUNICATION, COPY, HOST, LOADER, LAUNCH, GAP, RETURN, UNKNOWN = range(9)
KINDS = (*CLASSES, "host", "loader", "launch", "gap", "return", "unknown")
NO_EVENT = -1
_LONG_CALL_NS, _LONG_CALL = 50_000, 10.0  # a launch at least this long, and this multiple of the median, was blocked
_FULL_QUEUE = 256  # pieces of work; CUDA queues 1,024, then a launch waits for the GPU
_SAME_STREAM_NS = 5_000  # work that begins this soon after the previous work of its stream was delayed by it


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """GPU events with a duration, ordered by start, with the times of their launches and the activity of the host."""

    start_ns: Ns
    end_ns: Ns
    launch_ns: Ns  # `NO_LAUNCH_NS`: unknown; never after the start
    class_: NDArray[np.uint8]
    stream: NDArray[np.int64]
    name: NDArray[np.int32]
    names: Sequence[str]
    loader: Union
    synchronising: Union
    begin_ns: int
    finish_ns: int

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """The consecutive segments of a critical path: each begins where the previous one ends."""

    start_ns: Ns
    end_ns: Ns
    kind: NDArray[np.uint8]
    event: NDArray[np.int64]  # index in the timeline for pieces on the GPU, else `NO_EVENT`

    @property
    def length_ns(self) -> int:
        """Return the nanoseconds from the beginning to the end of the path."""
        return int((self.end_ns - self.start_ns).sum())

    def by_kind(self, within: tuple[int, int] | None = None) -> dict[str, int]:
        """Return the nanoseconds of every kind of segment, in total or between two times.

        They are 0 for kinds that are not on the path.
        """
        starts, ends = self.start_ns, self.end_ns
        if within is not None:
            starts, ends = np.maximum(starts, within[0]), np.minimum(ends, within[1])
        totals = np.zeros(len(KINDS), np.int64)
        np.add.at(totals, self.kind, np.maximum(ends - starts, 0))
        return {name: int(total) for name, total in zip(KINDS, totals, strict=True)}


def timeline_of(capture: Capture, events: GpuEvents) -> Timeline | None:
    """Return the timeline from the first marked step or launch to the end of the last; None without GPU events."""
    real = np.flatnonzero(events.end_ns > events.start_ns)
    if not len(real):
        return None
    own = events.at(real[np.argsort(events.start_ns[real], kind="stable")])
    at = launched_at(own.correlation, capture.launches)
    launch = np.where(at == NO_LAUNCH_NS, NO_LAUNCH_NS, np.minimum(at, own.start_ns))
    known = launch[launch != NO_LAUNCH_NS]
    first = min(int(own.start_ns[0]), int(known.min()) if len(known) else int(own.start_ns[0]))
    last = int(own.end_ns.max())
    inside = [step for step in capture.steps if step.end_ns > first and step.start_ns < last]
    return Timeline(
        start_ns=own.start_ns,
        end_ns=own.end_ns,
        launch_ns=launch,
        class_=own.class_,
        stream=own.stream,
        name=own.name,
        names=own.names,
        loader=capture.host.loader,
        synchronising=_waiting(capture, own, launch),
        begin_ns=min([first, *(step.start_ns for step in inside)]),
        finish_ns=max([last, *(step.end_ns for step in inside)]),
    )


def _waiting(capture: Capture, own: GpuEvents, launch: Ns) -> Union:
    """Return the intervals in which the host waited for the GPU: synchronising calls, and launches into a full queue.

    Args:
        capture: The capture of a rank.
        own: GPU events, ordered by start.
        launch: Launch time of each event, or `NO_LAUNCH_NS`.
    """
    calls = capture.launches
    if not len(calls.start_ns):
        return capture.host.synchronising
    lasted = calls.end_ns - calls.start_ns
    long = np.flatnonzero(lasted >= max(_LONG_CALL_NS, _LONG_CALL * float(np.median(lasted))))
    ends = calls.end_ns[long]
    known = launch != NO_LAUNCH_NS
    launched = np.searchsorted(np.sort(launch[known]), ends, side="right")
    full = long[launched - np.searchsorted(np.sort(own.end_ns[known]), ends, side="right") >= _FULL_QUEUE]
    told = capture.host.synchronising
    return union_of(
        np.concatenate([told.starts_ns, calls.start_ns[full]]), np.concatenate([told.ends_ns, calls.end_ns[full]])
    )


def predecessors(line: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each event the last earlier event on its stream, and the last on any stream; `NO_EVENT` if none."""
    order = np.argsort(line.end_ns, kind="stable")
    place = np.searchsorted(line.end_ns[order], line.start_ns, side="right") - 1
    anywhere = np.where(place >= 0, order[np.maximum(place, 0)], NO_EVENT)
    own = np.full(len(line), NO_EVENT, np.int64)
    by_stream = np.argsort(line.stream, kind="stable")  # within a stream in the order of starts
    same = line.stream[by_stream[1:]] == line.stream[by_stream[:-1]]
    own[by_stream[1:][same]] = by_stream[:-1][same]
    return own, anywhere


def binding_events(line: Timeline) -> NDArray[np.int64]:
    """Return for each event the earlier event that delayed its start.

    `NO_EVENT` if the event started when it was launched, or if the cause is unknown.
    """
    own, anywhere = predecessors(line)
    gap = line.start_ns - line.end_ns[own]
    follows = (own != NO_EVENT) & (gap <= _SAME_STREAM_NS) & (line.end_ns[own] <= line.start_ns)
    chosen = np.where(follows, own, anywhere)
    held = (chosen != NO_EVENT) & ((line.launch_ns == NO_LAUNCH_NS) | (line.end_ns[chosen] > line.launch_ns))
    return np.where(held, chosen, NO_EVENT)


def critical_path_of(line: Timeline) -> CriticalPath:
    """Return the critical path of a timeline."""
    table = np.array(_PathWalk(line).back()[::-1], np.int64).reshape(-1, 4)
    path = CriticalPath(start_ns=table[:, 0], end_ns=table[:, 1], kind=table[:, 2].astype(np.uint8), event=table[:, 3])
    return _split_at_loader(path, line.loader)


class _PathWalk:
    """Builds a critical path backwards, from the last segment. Segments are tuples of start, end, kind and event."""

    def __init__(self, line: Timeline) -> None:
        by_end = np.argsort(line.end_ns, kind="stable")
        self._starts: list[int] = line.start_ns.tolist()
        self._ends: list[int] = line.end_ns.tolist()
        self._launches: list[int] = line.launch_ns.tolist()
        self._classes: list[int] = line.class_.tolist()
        self._held_by: list[int] = binding_events(line).tolist()
        self._by_end: list[int] = by_end.tolist()
        self._in_order: list[int] = line.end_ns[by_end].tolist()
        self._calls = list(zip(line.synchronising.starts_ns.tolist(), line.synchronising.ends_ns.tolist(), strict=True))
        self._called = [start for start, _ in self._calls]
        self._begin, self._at = line.begin_ns, line.finish_ns
        self._pieces: list[tuple[int, int, int, int]] = []

    def back(self) -> list[tuple[int, int, int, int]]:
        """Return the segments from the end to the beginning of the timeline."""
        event = self._by_end[-1] if self._in_order[-1] == self._at else self._host()
        while event != NO_EVENT:
            event = self._gpu(event)
        return self._pieces

    def _to(self, time: int, kind: int, event: int = NO_EVENT) -> None:
        time = max(time, self._begin)
        if time < self._at:
            self._pieces.append((time, self._at, kind, event))
            self._at = time

    def _gpu(self, event: int) -> int:
        """Add the segments of a GPU event and of its cause; return the next event on the path, or `NO_EVENT`."""
        self._to(self._starts[event], self._classes[event], event)
        before, launch = self._held_by[event], self._launches[event]
        if before != NO_EVENT:
            self._to(self._ends[before], GAP)
            return before
        if launch == NO_LAUNCH_NS:
            self._to(self._begin, UNKNOWN)
            return NO_EVENT
        self._to(launch, LAUNCH)
        return self._host()

    def _host(self) -> int:
        """Add the host's time back to its last call that waited for GPU work; return this work, or `NO_EVENT`."""
        place = bisect_right(self._called, self._at) - 1
        while place >= 0:
            start, end = self._calls[place]
            last = bisect_right(self._in_order, end) - 1
            if end <= self._at and last >= 0 and self._in_order[last] > start:
                self._to(end, HOST)
                self._to(self._in_order[last], RETURN)
                return self._by_end[last]
            place -= 1
        self._to(self._begin, HOST)
        return NO_EVENT


def _split_at_loader(path: CriticalPath, loader: Union) -> CriticalPath:
    """Return the path with host segments divided into fetching batches and other work."""
    host = path.kind == HOST
    hosts = union_of(path.start_ns[host], path.end_ns[host])
    fetching = intersection(hosts, loader)
    others = difference(hosts, fetching)
    parts = (fetching, LOADER), (others, HOST)
    start = np.concatenate([path.start_ns[~host], *(part.starts_ns for part, _ in parts)])
    order = np.argsort(start, kind="stable")
    kinds = [np.full(len(part.starts_ns), kind, np.uint8) for part, kind in parts]
    none = np.full(len(start) - int((~host).sum()), NO_EVENT, np.int64)
    return CriticalPath(
        start_ns=start[order],
        end_ns=np.concatenate([path.end_ns[~host], *(part.ends_ns for part, _ in parts)])[order],
        kind=np.concatenate([path.kind[~host], *kinds])[order],
        event=np.concatenate([path.event[~host], none])[order],
    )
