"""What is to be told of one rank? A capture in a window: its breakdown, its kernels, its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.traces import kineto, nsys
from paceline.traces.breakdown import Breakdown, broken_down
from paceline.traces.changes import change_of
from paceline.traces.collectives import Call
from paceline.traces.content import NotACapture
from paceline.traces.gpus import by_gpu
from paceline.traces.idle import Idle, idle_of
from paceline.traces.kernels import Kernel, kernels_of
from paceline.traces.model import Capture, GpuEvents, Step
from paceline.traces.operators import Launchers, launchers_in
from paceline.traces.path import PathSummary, path_in
from paceline.traces.queue import Queue, queue_of
from paceline.traces.removal import speed_ups_without
from paceline.traces.window import events_in, steps_in


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be found out of each capture; what is off takes time of its own."""

    window: str = "all"
    launchers: bool = False  # who launched the work
    path: bool = False  # the critical path
    what_if: Sequence[str] = ()  # changes to be played on it, as `changes.change_of` takes them; none: the usual ones


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One rank, or one GPU of an Nsight export, in a window."""

    source: str
    rank: int | None
    world: int | None
    gpu: str | None
    device: int | None
    window: str
    steps: int  # that are marked, in the window
    breakdown: Breakdown
    idle: Idle
    queue: Queue
    loader_is_serial: bool | None  # None: no loader is seen
    kernels: Sequence[Kernel]
    calls: Sequence[Call]
    problems: Sequence[str]
    host: str | None = None  # the machine's name
    one_of_several: bool = False  # GPUs in its file
    launchers: Launchers | None = None  # of the whole capture; None: not asked for, or not in it
    path: PathSummary | None = None  # None: not asked for, or no GPU events
    host_ns: int = 0  # without GPU events: from the first marked step or collective on the host to the last one's end
    outside_ns: int = 0  # captured before the first GPU event and after the last one; 0 in other windows than all
    without: Mapping[str, float] = field(default_factory=dict)  # speed-ups by replay, as `removal` names the parts

    @property
    def title(self) -> str:
        """What it is called: its rank, or its file, and its GPU where the file has several."""
        name = f"rank {self.rank}" if self.rank is not None else Path(self.source).name
        return f"GPU {self.device} of {name}" if self.one_of_several else name

    @property
    def lasted_ns(self) -> int:
        """The time that is looked at: from the first GPU event to the last, or that of the host; 0: not known."""
        return self.breakdown.span_ns or self.host_ns


def summaries_of(path: Path, wanted: Wanted) -> list[RankTrace]:
    """Read a file and summarise what it holds.

    Raises:
        NotACapture: It is no capture, or nothing of it could be read.
    """
    ranks = [summarised(capture, wanted) for capture in captures_of(path)]
    if len(ranks) > 1:
        ranks = [replace(rank, one_of_several=True) for rank in ranks]
    return _with_launchers(path, ranks) if wanted.launchers else ranks


def _with_launchers(path: Path, ranks: Sequence[RankTrace]) -> list[RankTrace]:
    """Add who launched the work of GPUs, where a file is a whole capture of PyTorch's profiler."""
    try:
        found = launchers_in(path)
    except NotACapture as error:
        problem = f"{error}: the operators of this capture are not known"
        return [replace(rank, problems=[*rank.problems, problem]) for rank in ranks]
    return [replace(ranks[0], launchers=found), *ranks[1:]]  # they are of the file, not of one of its GPUs


def captures_of(path: Path) -> list[Capture]:
    """Read a file: one capture of a rank, or one for each GPU of an Nsight export.

    Raises:
        NotACapture: It is no capture, or nothing of it could be read.
    """
    try:
        export = nsys.is_export(path)
    except OSError as error:
        raise NotACapture(f"{path} cannot be read: {error.strerror or error}") from error
    return nsys.read(path) if export else by_gpu(kineto.read(path))


def summarised(capture: Capture, wanted: Wanted) -> RankTrace:
    """Summarise a capture in a window."""
    window = wanted.window
    events = events_in(capture, window)
    calls = _within(capture, events, window)
    changes = [change_of(text) for text in wanted.what_if]
    problems = list(capture.problems)
    if not len(capture.events):
        problems.append(f"{capture.source}: the capture contains no GPU events, because the profiler saw no GPU")
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
        breakdown=broken_down(events),
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
    """Return the captured time before the first GPU event and after the last one."""
    if capture.captured_ns is None or not len(events):
        return 0
    first, last = capture.captured_ns
    return max(0, int(events.start_ns.min()) - first) + max(0, last - int(events.end_ns.max()))


def _within(capture: Capture, events: GpuEvents, window: str) -> list[Call]:
    """Return the collectives from the first GPU event of a window to its last; without any, those in marked steps."""
    if len(events):
        first, last = int(events.start_ns.min()), int(events.end_ns.max())
    elif window == "all" or not capture.steps:
        return list(capture.calls)
    else:
        first, last = min(step.start_ns for step in capture.steps), max(step.end_ns for step in capture.steps)
    return [call for call in capture.calls if first <= call.start_ns <= last]


def _covered(spans: Sequence[Step | Call]) -> int:
    return max(one.end_ns for one in spans) - min(one.start_ns for one in spans) if spans else 0
