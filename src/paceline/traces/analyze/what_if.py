"""Replays a capture with changed durations, to predict its time if a part of the work were faster or absent.

GPU work starts after three causes: its launch has reached the GPU, the previous work of its stream has ended, and, if
work of another stream delayed it, that work has ended. The recorded delay is kept for the cause that delayed the work;
the other causes get the usual delay. The host proceeds from launch to launch as recorded, except that calls that wait
for GPU work return when this work ends. Without a change, the replay takes exactly the recorded time.

Two effects are not modelled: kernels that run on the GPU at the same time slow each other down, and communication that
waits for other ranks is faster only if these ranks become faster too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.errors import UsageError
from paceline.traces.analyze.critical_path import NO_EVENT, Timeline, binding_events, predecessors
from paceline.traces.capture import CLASSES, COMMUNICATION, COPY, NO_LAUNCH_NS
from paceline.traces.intervals import Ns, length_before

_USUAL_LAUNCH_NS, _USUAL_GAP_NS = 5_000, 1_000  # used if a capture shows no such delay
_NEVER = float("-inf")
_WORK, _LAUNCH, _RETURN = 0, 1, 2  # the host works until this time, launches, or returns from a call that waited

Durations = Callable[[Timeline], Ns]  # returns the duration of each piece of GPU work
_Mark = tuple[int, int, int, int]  # time, kind, event, and time spent fetching batches since the last mark


def recorded_durations(line: Timeline) -> Ns:
    """Return the recorded duration of each GPU event."""
    return line.end_ns - line.start_ns


@dataclass(frozen=True, kw_only=True)
class WhatIfChange:
    """A change to replay: which part of the time becomes faster, and by which factors."""

    what: str  # description for the report
    lasting: Durations = recorded_durations
    host: float = 1.0  # factor on the host's own time
    loader: float = 1.0  # factor on the time in which the host fetches batches
    waits: bool = True  # whether calls wait for the GPU


@dataclass(frozen=True, kw_only=True)
class WhatIfOutcome:
    """The result of a replay: the time of the capture before and after a change."""

    what: str
    before_ns: int
    after_ns: int

    @property
    def faster(self) -> float | None:
        """Return the speed-up; None if the time after the change is 0."""
        return self.before_ns / self.after_ns if self.after_ns else None


class Replay:
    """A capture whose events can be replayed with changed durations."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        own, _ = predecessors(line)
        held = binding_events(line)
        self._own, self._other = own.tolist(), np.where(held == own, NO_EVENT, held).tolist()
        self._delays = list(zip(*_delays(line, own, held), strict=True))
        self._marks = _marks(line)
        self._finish = line.finish_ns - line.begin_ns

    def play(self, change: WhatIfChange) -> WhatIfOutcome:
        """Replay the capture with a change, and return the time before and after the change."""
        taken = change.lasting(self._line).tolist()
        launched = [0.0] * len(self._line)
        ends: list[float] = []
        at, before = 0.0, 0
        for time, kind, which, fetched in self._marks:
            if kind == _RETURN and change.waits:
                self._run_to(which, launched, ends, taken)
                at = max(at, ends[which] + time - (int(self._line.end_ns[which]) - self._line.begin_ns))
            elif kind != _RETURN:
                at += (time - before - fetched) * change.host + fetched * change.loader
                if kind == _LAUNCH:
                    launched[which] = at
            before = time
        self._run_to(len(self._line) - 1, launched, ends, taken)
        return WhatIfOutcome(what=change.what, before_ns=self._finish, after_ns=round(max(at, *ends, 0.0)))

    def _run_to(self, last: int, launched: Sequence[float], ends: list[float], taken: Sequence[int]) -> None:
        """Replay GPU events in the order of their starts, up to and including `last`; add their ends to `ends`."""
        for event in range(len(ends), last + 1):
            by_launch, by_stream, by_other = self._delays[event]
            start = launched[event] + by_launch
            if self._own[event] != NO_EVENT:
                start = max(start, ends[self._own[event]] + by_stream)
            if self._other[event] != NO_EVENT:
                start = max(start, ends[self._other[event]] + by_other)
            ends.append(start + taken[event])


def _delays(line: Timeline, own: Ns, held: Ns) -> tuple[list[float], list[int], list[int]]:
    """Return the shortest delays before each GPU event starts, in nanoseconds.

    The three lists are the delays after the launch, after the previous event of the stream, and after the event of
    another stream that delayed it.
    """
    known = line.launch_ns != NO_LAUNCH_NS
    since_launch = line.start_ns - np.where(known, line.launch_ns, line.begin_ns)
    by_launch = known & (held == NO_EVENT)
    usual = int(np.median(since_launch[by_launch])) if by_launch.any() else _USUAL_LAUNCH_NS
    launch = np.where(held == NO_EVENT, since_launch, np.minimum(since_launch, usual)).astype(np.float64)
    launch[~known & (held != NO_EVENT)] = _NEVER
    since_own = line.start_ns - line.end_ns[own]
    stream = np.where(held == own, since_own, np.minimum(since_own, _USUAL_GAP_NS))
    return launch.tolist(), stream.tolist(), (line.start_ns - line.end_ns[held]).tolist()


def _marks(line: Timeline) -> list[_Mark]:
    """Return the host's launches, and the beginnings and ends of its waits for the GPU, in order."""
    known = np.flatnonzero(line.launch_ns != NO_LAUNCH_NS)
    marks = [(int(line.launch_ns[event]), _LAUNCH, int(event)) for event in known]
    for start, end, work in _calls(line):
        marks += [(start, _WORK, NO_EVENT), (end, _RETURN, work)]
    if line.finish_ns > int(line.end_ns.max()):
        marks.append((line.finish_ns, _WORK, NO_EVENT))
    marks.sort()
    fetched = np.diff(length_before(line.loader, np.array([line.begin_ns, *(time for time, _, _ in marks)], np.int64)))
    return [(time - line.begin_ns, kind, which, int(f)) for (time, kind, which), f in zip(marks, fetched, strict=True)]


def _calls(line: Timeline) -> list[tuple[int, int, int]]:
    """Return the calls that waited for GPU work: their start and end, and the GPU event that each waited for."""
    by_end = np.argsort(line.end_ns, kind="stable")
    ends = line.end_ns[by_end].tolist()
    found = []
    for start, end in zip(line.synchronising.starts_ns.tolist(), line.synchronising.ends_ns.tolist(), strict=True):
        last = bisect_right(ends, end) - 1
        if last >= 0 and ends[last] > start >= line.begin_ns and end <= line.finish_ns:
            found.append((start, end, int(by_end[last])))
    return found


GONE = "gone"
_KERNEL = "kernel:"
PARTS = ("loader", "host", "waits", *CLASSES, "kernel:NAME")
_NAMES = {"loader": "fetching batches", "host": "host work", "copy": "copies"}
_LARGEST, _TWICE = 3, 2.0


def parse_change(text: str) -> WhatIfChange:
    """Return the change for a text such as ``communication=2`` or ``kernel:gemm=gone``.

    Raises:
        UsageError: The part or the factor is not valid.
    """
    part, _, factor = text.rpartition("=")
    known = part in ("loader", "host", "waits", *CLASSES) or (part.startswith(_KERNEL) and part != _KERNEL)
    gone = factor.strip() == GONE
    if not known or (part == "waits" and not gone):
        raise UsageError(
            f"--what-if {text}: unknown part of the time; the known parts are {', '.join(PARTS)}, each with a factor "
            f"such as =2, or with ={GONE}; the part waits can only be given as waits={GONE}"
        )
    share = _left(text, factor)
    said = f"{_NAMES.get(part, part.removeprefix(_KERNEL))} {'took no time' if gone else f'took 1/{factor.strip()}'}"
    if part == "loader":
        return WhatIfChange(what=said, loader=share)
    if part == "host":
        return WhatIfChange(what=said, host=share)
    if part == "waits":
        return WhatIfChange(what="no call of the host waited for the GPU", waits=False)
    if part in CLASSES:
        return WhatIfChange(
            what=said, lasting=lambda line: _scaled(line, lambda own: own.class_ == CLASSES.index(part), share)
        )
    return WhatIfChange(what=said, lasting=_of_names(part.removeprefix(_KERNEL), share))


def check_kernels(asked: Sequence[str], names: Iterable[str]) -> None:
    """Check that each kernel named in a what-if change exists on some rank.

    Raises:
        UsageError: No kernel name contains the given text.
    """
    known = set(names)
    for text in asked:
        part = text.rpartition("=")[0].removeprefix(_KERNEL)
        if text.startswith(_KERNEL) and not any(part in name for name in known):
            raise UsageError(f"--what-if {text}: no kernel name contains {part!r}")


def usual_changes(line: Timeline) -> list[WhatIfChange]:
    """Return the default changes: each part of the time removed, and the largest kernels twice as fast."""
    present = set(np.unique(line.class_).tolist())
    asked = ["loader=gone"] if line.loader.length_ns else []
    asked += ["host=gone"]
    asked += ["waits=gone"] if line.synchronising.length_ns else []
    asked += [f"{CLASSES[each]}=gone" for each in (COMMUNICATION, COPY) if each in present]
    changes = [parse_change(text) for text in asked]
    return changes + [_twice(line, name) for name in _largest(line)]


def _largest(line: Timeline) -> Sequence[int]:
    totals = np.bincount(line.name, weights=recorded_durations(line), minlength=len(line.names))
    return [int(name) for name in np.argsort(-totals, kind="stable")[:_LARGEST] if totals[name] > 0]


def _twice(line: Timeline, name: int) -> WhatIfChange:
    def lasting(line: Timeline) -> Ns:
        return _scaled(line, lambda own: own.name == name, 1 / _TWICE)

    return WhatIfChange(what=f"{line.names[name]} took 1/2", lasting=lasting)


def _left(text: str, factor: str) -> float:
    """Return the share of a time that remains after a change: 1 / `factor`, or 0 for ``gone``."""
    if factor.strip() == GONE:
        return 0.0
    try:
        times = float(factor)
    except ValueError:
        times = 0.0
    if not 0 < times < float("inf"):
        raise UsageError(f"--what-if {text}: {factor!r} is not a factor; give a number above 0, such as 2, or {GONE}")
    return 1 / times


def _of_names(part: str, share: float) -> Durations:
    def chosen(line: Timeline) -> np.ndarray:
        return np.array([part in name for name in line.names], bool)[line.name]

    return lambda line: _scaled(line, chosen, share)


def _scaled(line: Timeline, chosen: Callable[[Timeline], np.ndarray], share: float) -> Ns:
    lasted = recorded_durations(line)
    return np.where(chosen(line), np.rint(lasted * share).astype(np.int64), lasted)
