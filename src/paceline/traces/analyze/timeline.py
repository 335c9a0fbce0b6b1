"""Timelines of several ranks on one clock, packed for a web page.

A million events are about three million numbers. These take a few megabytes if they are packed by column, with starts
as differences. The files of the selected ranks are read once more, because summaries contain no events.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.traces.analyze.gpu_time import events_in
from paceline.traces.analyze.ranks import RankTrace, Traces
from paceline.traces.capture import CLASSES, Capture, GpuEvents, MarkedStep
from paceline.traces.intervals import Ns, Union
from paceline.traces.read.files import captures_of

GPU, HOST = "gpu", "host"
_LARGEST = 2**32 - 1
_LONGEST_NAME = 160


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One row of a timeline, with events of one kind that ran one after the other, ordered by start."""

    title: str  # "stream 7"
    kind: str  # `GPU` or `HOST`
    start_ns: Ns
    end_ns: Ns
    name: NDArray[np.int64]  # index in `names`
    names: Sequence[tuple[str, str]]  # pairs of name and class


@dataclass(frozen=True, kw_only=True)
class RankTimeline:
    """The timeline of one rank: a lane for each GPU stream and each kind of host activity."""

    title: str
    lanes: Sequence[Lane]


@dataclass(frozen=True, kw_only=True)
class PackedTimelines:
    """Timelines of several ranks, compressed: for each lane the starts, the durations and the names.

    All are 32-bit little-endian numbers, the names as indices in `names`. Starts are stored as differences, the first
    from the beginning of the timeline. Times are in units of `unit_ns` nanoseconds.
    """

    unit_ns: int
    span_ns: int
    names: Sequence[tuple[str, str]]
    ranks: Sequence[
        tuple[str, Sequence[tuple[str, str, int]]]
    ]  # title of the rank; title, kind and event count of each lane
    data: bytes


def rank_timeline(capture: Capture, events: GpuEvents, title: str, moved_ns: int = 0) -> RankTimeline:
    """Return the timeline of a rank, with lanes for steps, for host activity, and for the streams of its GPU.

    Args:
        capture: The capture of the rank.
        events: The GPU events of the window.
        title: Display name of the rank.
        moved_ns: Nanoseconds to add to the clock of the rank.
    """
    host = capture.host
    lanes = [
        _steps(capture.steps),
        _ranges("fetching batches", "loader", host.loader),
        _ranges("waiting for the GPU", "waits", host.synchronising),
        _launches(capture),
    ]
    streams = np.unique(events.stream).tolist()
    lanes += [_stream(events, stream) for stream in streams]
    return RankTimeline(title=title, lanes=[_shifted(lane, moved_ns) for lane in lanes if len(lane.start_ns)])


def pack_timelines(pictures: Sequence[RankTimeline]) -> PackedTimelines | None:
    """Return timelines with the same clock, packed; None if there are no GPU events."""
    lanes = [lane for picture in pictures for lane in picture.lanes]
    gpu = [lane for lane in lanes if lane.kind == GPU]
    if not gpu:
        return None
    first = min(int(lane.start_ns[0]) for lane in lanes)
    span = max(int(lane.end_ns.max()) for lane in lanes) - first
    unit = max(1, -(-span // _LARGEST))
    names: dict[tuple[str, str], int] = {}
    columns = [_columns(lane, first, unit, names) for lane in lanes]
    return PackedTimelines(
        unit_ns=unit,
        span_ns=span,
        names=list(names),
        ranks=[(one.title, [(lane.title, lane.kind, len(lane.start_ns)) for lane in one.lanes]) for one in pictures],
        data=zlib.compress(b"".join(columns), 6),
    )


def _columns(lane: Lane, first: int, unit: int, names: dict[tuple[str, str], int]) -> bytes:
    starts = (lane.start_ns - first) // unit
    lasted = np.clip((lane.end_ns - lane.start_ns) // unit, 0, _LARGEST)
    places = [names.setdefault((name[:_LONGEST_NAME], class_), len(names)) for name, class_ in lane.names]
    own = np.array(places, np.int64)[lane.name]
    return b"".join(column.astype("<u4").tobytes() for column in (np.diff(starts, prepend=0), lasted, own))


def _lane(
    title: str, kind: str, start_ns: Ns, end_ns: Ns, name: NDArray[np.int64], names: Sequence[tuple[str, str]]
) -> Lane:
    order = np.argsort(start_ns, kind="stable")
    ends = np.maximum(end_ns, start_ns)
    return Lane(title=title, kind=kind, start_ns=start_ns[order], end_ns=ends[order], name=name[order], names=names)


def _stream(events: GpuEvents, stream: int) -> Lane:
    own = events.where(events.stream == stream)
    keys, place = np.unique(own.name.astype(np.int64) * len(CLASSES) + own.class_, return_inverse=True)
    names = [(own.names[int(key) // len(CLASSES)], CLASSES[int(key) % len(CLASSES)]) for key in keys]
    title = f"stream {stream}" if stream >= 0 else "GPU"
    return _lane(title, GPU, own.start_ns, own.end_ns, place.astype(np.int64), names)


def _steps(steps: Sequence[MarkedStep]) -> Lane:
    distinct: Mapping[str, MarkedStep] = {step.name: step for step in reversed(steps)}
    starts = np.array([step.start_ns for step in distinct.values()], np.int64)
    ends = np.array([step.end_ns for step in distinct.values()], np.int64)
    return _lane("steps", HOST, starts, ends, np.arange(len(starts)), [(name, "step") for name in distinct])


def _ranges(title: str, class_: str, union: Union) -> Lane:
    return _lane(
        title, HOST, union.starts_ns, union.ends_ns, np.zeros(len(union.starts_ns), np.int64), [(title, class_)]
    )


def _launches(capture: Capture) -> Lane:
    made = capture.launches
    return _lane(
        "launches", HOST, made.start_ns, made.end_ns, np.zeros(len(made.start_ns), np.int64), [("launch", "launch")]
    )


def _shifted(lane: Lane, ns: int) -> Lane:
    if not ns:
        return lane
    return Lane(
        title=lane.title,
        kind=lane.kind,
        start_ns=lane.start_ns + ns,
        end_ns=lane.end_ns + ns,
        name=lane.name,
        names=lane.names,
    )


MOST_RANKS, MOST_EVENTS = 8, 1_500_000  # limits for several ranks; for a single rank all events are shown


@dataclass(frozen=True, kw_only=True)
class TimelineData:
    """The timelines of some ranks, and the number of ranks that have none on the page."""

    packed: PackedTimelines
    left_out: int


def timeline_data_of(traces: Traces) -> TimelineData | None:
    """Return the timelines of the ranks in `ranks_to_show`; None if there are no GPU events."""
    chosen = ranks_to_show(traces)
    pictures = []
    for rank in chosen:
        for capture in captures_of(Path(rank.source)):
            if capture.device == rank.device:
                moved = traces.matched.offsets_ns.get(rank.rank, 0) if rank.rank is not None else 0
                pictures.append(rank_timeline(capture, events_in(capture, rank.window), rank.title, moved))
    made = pack_timelines(pictures)
    return TimelineData(packed=made, left_out=len(traces.ranks) - len(chosen)) if made is not None else None


def ranks_to_show(traces: Traces) -> list[RankTrace]:
    """Return as many ranks as a page can hold, in rank order.

    The worst stragglers are chosen first, then the ranks that are idle for the largest share of time.
    """
    waited_for = {one.rank: place for place, one in enumerate(traces.stragglers)}

    def standing_out(rank: RankTrace) -> tuple[float, float]:
        place = waited_for.get(rank.rank, len(waited_for)) if rank.rank is not None else len(waited_for)
        return place, -(rank.breakdown.idle_ns / rank.breakdown.span_ns if rank.breakdown.span_ns else 0.0)

    chosen: list[RankTrace] = []
    events = 0
    for rank in sorted(traces.ranks, key=standing_out)[:MOST_RANKS]:
        events += rank.breakdown.events
        if not chosen or events <= MOST_EVENTS:
            chosen.append(rank)
    places = {id(rank) for rank in chosen}
    return [rank for rank in traces.ranks if id(rank) in places]
