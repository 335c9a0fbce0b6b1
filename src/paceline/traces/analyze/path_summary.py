"""The critical path of one rank in numbers, and the speed-up if a part of the time were absent, found by replay.

The share of a part in the time is only an upper bound of the effect of removing it: for example, a GPU that waits for
its host would not be faster without exposed communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.traces.analyze.critical_path import NO_EVENT, CriticalPath, Timeline, critical_path_of, timeline_of
from paceline.traces.analyze.what_if import (
    Replay,
    WhatIfChange,
    WhatIfOutcome,
    parse_change,
    recorded_durations,
    usual_changes,
)
from paceline.traces.capture import Capture, GpuEvents, MarkedStep
from paceline.traces.intervals import Ns
from paceline.traces.read.event_classes import is_transfer


@dataclass(frozen=True, kw_only=True)
class StepPath:
    """The critical path within one marked step, in nanoseconds by kind; the kinds sum to the length."""

    name: str
    length_ns: int
    kinds_ns: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class PathSummary:
    """The critical path of one rank, in nanoseconds."""

    length_ns: int
    kinds_ns: Mapping[str, int]  # sums to the length
    kernels_ns: Mapping[str, int]  # by name, by descending time on the path
    steps: Sequence[StepPath]
    what_if: Sequence[WhatIfOutcome]


def path_in(capture: Capture, events: GpuEvents, changes: Sequence[WhatIfChange] = ()) -> PathSummary | None:
    """Return the critical path of GPU events, with replays of changes; None without GPU events.

    Args:
        capture: The capture of a rank.
        events: The GPU events of the window.
        changes: Changes to replay; if empty, those of `usual_changes`.
    """
    line = timeline_of(capture, events)
    if line is None:
        return None
    path, replay = critical_path_of(line), Replay(line)
    return PathSummary(
        length_ns=path.length_ns,
        kinds_ns=path.by_kind(),
        kernels_ns=_by_name(path, line),
        steps=[_step(path, step) for step in _distinct(capture.steps, line)],
        what_if=[replay.play(change) for change in changes or usual_changes(line)],
    )


def _by_name(path: CriticalPath, line: Timeline) -> dict[str, int]:
    on = path.event != NO_EVENT
    totals = np.zeros(len(line.names), np.int64)
    np.add.at(totals, line.name[path.event[on]], (path.end_ns - path.start_ns)[on])
    order = np.argsort(-totals, kind="stable")
    return {line.names[int(place)]: int(totals[place]) for place in order if totals[place]}


def _distinct(steps: Sequence[MarkedStep], line: Timeline) -> list[MarkedStep]:
    """Return the steps within a timeline, each name once, because several threads can mark the same step."""
    found: dict[str, MarkedStep] = {}
    for step in steps:
        if step.name not in found and step.end_ns > line.begin_ns and step.start_ns < line.finish_ns:
            found[step.name] = step
    return sorted(found.values(), key=lambda step: step.start_ns)


def _step(path: CriticalPath, step: MarkedStep) -> StepPath:
    kinds = path.by_kind((step.start_ns, step.end_ns))
    return StepPath(name=step.name, length_ns=sum(kinds.values()), kinds_ns=kinds)


COMMUNICATION, TRANSFER, LOADER, HOST, WAITS = "communication", "transfer", "loader", "host", "waits"
_MOST_EVENTS = 400_000  # replaying all parts takes about 20 µs of CPU time per event


def _without_transfers(line: Timeline) -> Ns:
    between = np.array([is_transfer(name) for name in line.names], bool)
    return np.where(between[line.name], 0, recorded_durations(line))


_CHANGES: Mapping[str, WhatIfChange] = {
    COMMUNICATION: parse_change("communication=gone"),
    TRANSFER: WhatIfChange(what="copies from and to the host took no time", lasting=_without_transfers),
    LOADER: parse_change("loader=gone"),
    HOST: parse_change("host=gone"),
    WAITS: parse_change("waits=gone"),
}


def speed_ups_without(capture: Capture, events: GpuEvents) -> dict[str, float]:
    """Return for each part of a capture's time the speed-up if the part were absent, found by replay.

    Args:
        capture: The capture of a rank.
        events: The GPU events of the window.

    Returns:
        Factors by part; empty without GPU events, and for captures with more than `_MOST_EVENTS` events.
    """
    line = timeline_of(capture, events) if len(events) <= _MOST_EVENTS else None
    if line is None:
        return {}
    replay = Replay(line)
    played = {part: replay.play(change).faster for part, change in _CHANGES.items()}
    return {part: faster if faster is not None else float("inf") for part, faster in played.items()}
