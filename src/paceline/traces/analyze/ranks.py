"""Reads captures of any number of ranks, one process per capture, summarizes each, and compares the ranks.

The reading processes return only summaries, as MessagePack. At most one capture per core and one summary per rank are
in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec

from paceline.hardware.operating_system import allowed_cores
from paceline.traces.analyze.collectives import (
    CollectiveStraggler,
    MatchedCollectives,
    find_stragglers,
    match_collectives,
)
from paceline.traces.analyze.gpu_time import Breakdown, Kernel, break_down, events_in, kernels_of, steps_in
from paceline.traces.analyze.idle import Idle, idle_of
from paceline.traces.analyze.launch_queue import LaunchQueue, queue_of
from paceline.traces.analyze.launchers import Launchers, launchers_in
from paceline.traces.analyze.path_summary import PathSummary, path_in, speed_ups_without
from paceline.traces.analyze.what_if import check_kernels, parse_change
from paceline.traces.capture import Capture, CollectiveCall, GpuEvents, MarkedStep
from paceline.traces.read.content import NotACapture
from paceline.traces.read.files import captures_of


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """What to analyze in each capture; options that are off by default take additional time."""

    window: str = "all"
    launchers: bool = False  # time by operator, module and line
    path: bool = False  # the critical path
    what_if: Sequence[str] = ()  # changes to replay, in the syntax of `what_if.parse_change`; empty: the usual ones


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The analysis of one rank, or of one GPU of an Nsight export, in a window (a selection of its GPU events)."""

    source: str
    rank: int | None
    world: int | None
    gpu: str | None
    device: int | None
    window: str
    steps: int  # number of marked steps in the window
    breakdown: Breakdown
    idle: Idle
    queue: LaunchQueue
    loader_is_serial: bool | None  # None: the capture shows no loader
    kernels: Sequence[Kernel]
    calls: Sequence[CollectiveCall]
    problems: Sequence[str]
    host: str | None = None  # the machine's name
    one_of_several: bool = False  # whether its file contains several GPUs
    launchers: Launchers | None = None  # of the whole capture; None: not requested, or not in the capture
    path: PathSummary | None = None  # None: not requested, or no GPU events
    host_ns: int = 0  # without GPU events: time from the first to the last marked step or host collective
    outside_ns: int = 0  # captured before the first GPU event and after the last one; 0 in other windows than all
    without: Mapping[str, float] = field(default_factory=dict)  # speed-ups by replay, by part of `path_summary`

    @property
    def title(self) -> str:
        """Return the display name: the rank, or else the file, and the GPU if the file has several."""
        name = f"rank {self.rank}" if self.rank is not None else Path(self.source).name
        return f"GPU {self.device} of {name}" if self.one_of_several else name

    @property
    def lasted_ns(self) -> int:
        """Return the nanoseconds from the first to the last GPU event (without a GPU, host event); 0 if unknown."""
        return self.breakdown.span_ns or self.host_ns


def summaries_of(path: Path, wanted: TraceOptions) -> list[RankTrace]:
    """Return the analysis of each capture in a file.

    Raises:
        NotACapture: The file is not a capture, or nothing of it could be read.
    """
    ranks = [summarise(capture, wanted) for capture in captures_of(path)]
    if len(ranks) > 1:
        ranks = [replace(rank, one_of_several=True) for rank in ranks]
    return _with_launchers(path, ranks) if wanted.launchers else ranks


def _with_launchers(path: Path, ranks: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the ranks of a file with their time by operator, module and line; with a problem if it is unreadable."""
    try:
        found = launchers_in(path)
    except NotACapture as error:
        problem = f"{error}: the operators of this capture are not known"
        return [replace(rank, problems=[*rank.problems, problem]) for rank in ranks]
    return [replace(ranks[0], launchers=found), *ranks[1:]]  # the launchers are those of the whole file


def summarise(capture: Capture, wanted: TraceOptions) -> RankTrace:
    """Return the analysis of a capture in a window."""
    window = wanted.window
    events = events_in(capture, window)
    calls = _within(capture, events, window)
    changes = [parse_change(text) for text in wanted.what_if]
    problems = list(capture.problems)
    if not len(capture.events):
        problems.append(
            f"{capture.source}: the capture contains no GPU events: the profiler saw no GPU, or was started without "
            "ProfilerActivity.CUDA"
        )
    elif not len(events):
        problems.append(f"{capture.source}: the capture contains no GPU events in the window {window!r}")
    return RankTrace(
        source=capture.source,
        rank=capture.rank,
        world=capture.world,
        gpu=capture.gpu,
        device=capture.device,
        window=window,
        steps=steps_in(capture, window),
        breakdown=break_down(events),
        idle=idle_of(events, capture.launches, capture.host),
        queue=queue_of(events, capture.launches),
        loader_is_serial=capture.host.loader_is_serial,
        kernels=kernels_of(events),
        calls=calls,
        problems=problems,
        host=capture.host_name,
        path=path_in(capture, events, changes) if wanted.path else None,
        host_ns=0 if len(events) else _covered([*capture.steps, *calls]),
        outside_ns=_outside(capture, events) if window == "all" else 0,
        without=speed_ups_without(capture, events),
    )


def _outside(capture: Capture, events: GpuEvents) -> int:
    """Return the captured nanoseconds before the first and after the last GPU event."""
    if capture.captured_ns is None or not len(events):
        return 0
    first, last = capture.captured_ns
    return max(0, int(events.start_ns.min()) - first) + max(0, last - int(events.end_ns.max()))


def _within(capture: Capture, events: GpuEvents, window: str) -> list[CollectiveCall]:
    """Return the collectives between the first and the last GPU event; without GPU events, those in marked steps."""
    if len(events):
        first, last = int(events.start_ns.min()), int(events.end_ns.max())
    elif window == "all" or not capture.steps:
        return list(capture.calls)
    else:
        first, last = min(step.start_ns for step in capture.steps), max(step.end_ns for step in capture.steps)
    return [call for call in capture.calls if first <= call.start_ns <= last]


def _covered(spans: Sequence[MarkedStep | CollectiveCall]) -> int:
    return max(one.end_ns for one in spans) - min(one.start_ns for one in spans) if spans else 0


_ALONE = 2  # up to this many files are read without further processes


@dataclass(frozen=True, kw_only=True)
class Traces:
    """The analysis of all captures and the comparison of their ranks."""

    files: Sequence[str]
    ranks: Sequence[RankTrace]
    matched: MatchedCollectives
    stragglers: Sequence[CollectiveStraggler]
    problems: Sequence[str]  # of files, of ranks, and of the comparison of ranks


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The result of reading one file: its ranks, or the problem."""

    ranks: list[RankTrace]
    problem: str | None = None


_READ = msgspec.msgpack.Decoder(_Read)


def read_all(
    files: Sequence[Path],
    wanted: TraceOptions,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Traces:
    """Read and analyze captures, and compare their ranks.

    Args:
        files: The capture files, as `files_in` returns them.
        wanted: What to analyze in each capture.
        processes: Number of parallel readers; None for one per core.
        progress: Called with the number of files read so far, and the number of all files.

    Raises:
        NotACapture: No file could be read.
        UsageError: A what-if change names a kernel that no rank has.
    """
    found: list[_Read] = []
    for one in _read(files, partial(_packed, wanted=wanted), processes or len(allowed_cores())):
        found.append(one)
        progress(len(found), len(files))
    broken = [one.problem for one in found if one.problem is not None]
    ranks, doubtful = _distinct([rank for one in found for rank in one.ranks])
    if not ranks:
        raise NotACapture("; ".join(broken))
    check_kernels(wanted.what_if, (kernel.name for rank in ranks for kernel in rank.kernels))
    together = {rank.rank: rank.calls for rank in ranks if rank.rank is not None}
    fitted = match_collectives(
        together, {rank.rank: rank.host for rank in ranks if rank.rank is not None and rank.host}
    )
    return Traces(
        files=[str(file) for file in files],
        ranks=ranks,
        matched=fitted,
        stragglers=find_stragglers(fitted.collectives, len(together)),
        problems=[
            *broken,
            *(problem for rank in ranks for problem in rank.problems),
            *doubtful,
            *_missing(ranks),
            *fitted.problems,
        ],
    )


def _read(files: Sequence[Path], one: Callable[[Path], bytes], processes: int) -> Iterator[_Read]:
    if len(files) <= _ALONE or processes == 1:
        yield from (_READ.decode(one(file)) for file in files)
        return
    with ProcessPoolExecutor(min(processes, len(files)), mp_context=get_context("spawn")) as pool:
        yield from map(_READ.decode, pool.map(one, files, chunksize=1))


def _packed(file: Path, wanted: TraceOptions) -> bytes:
    try:
        return msgspec.msgpack.encode(_Read(ranks=summaries_of(file, wanted)))
    except NotACapture as error:
        return msgspec.msgpack.encode(_Read(ranks=[], problem=str(error)))


def _distinct(ranks: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Return the ranks in order, and messages about problems.

    If two files have the same rank, the later file loses its rank number.
    """
    found, problems = [], []
    doubled: set[str] = set()
    files: dict[int, str] = {}  # all GPUs of one file have the same rank
    for rank in ranks:
        if rank.rank is not None and files.setdefault(rank.rank, rank.source) != rank.source:
            problems.append(
                f"{rank.source}: another file contains rank {rank.rank} already, so this file is not matched with "
                f"the other ranks"
            )
            rank = replace(rank, rank=None)
            doubled.add(rank.source)
        found.append(rank)
    unknown = {rank.source for rank in found if rank.rank is None and not rank.one_of_several} - doubled
    if unknown and len(found) > 1:
        which = f"{len(unknown)} files have" if len(unknown) > 1 else f"{next(iter(unknown))} has"
        problems.append(f"{which} no rank number, neither in the content nor in the file name")
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0)), problems


def _missing(ranks: Sequence[RankTrace]) -> list[str]:
    there = {rank.rank for rank in ranks if rank.rank is not None}
    told = [rank.world for rank in ranks if rank.world is not None]
    world = max(told, default=max(there, default=-1) + 1)
    absent = sorted(set(range(world)) - there)
    if not absent or len(there) < 2:
        return []
    shown = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
    return [f"{len(absent)} of {'' if told else 'at least '}{world} ranks are missing: {shown}"]
