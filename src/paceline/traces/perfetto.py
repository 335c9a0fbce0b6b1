"""Writes a time window of captures to one file for Perfetto and chrome://tracing, with several ranks on one clock.

The file keeps everything that the profiler recorded in the window: arguments, shapes, stacks, and the arrows from
launches to GPU work. Processes get new numbers, so that those of different ranks stay separate.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.errors import UsageError
from paceline.traces.analyze.ranks import Traces
from paceline.traces.read import nsys
from paceline.traces.read.content import NotACapture, read_content
from paceline.traces.read.kineto import STEP
from paceline.traces.read.lenient import recover_events

MOST_RANKS = 32
_UNITS_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "ns": 1e-3}
_TIME = re.compile(r"([0-9.]+)\s*(s|ms|us|µs|ns)")
_STEPS = re.compile(r"#(\d+)(?::#?(\d+))?")
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ExportWindow:
    """The part of the captures to export.

    It is a range of marked steps (both ends included), or of microseconds since the first event of a capture.
    """

    steps: tuple[int, int] | None = None
    times_us: tuple[float, float] | None = None


def parse_window(text: str) -> ExportWindow:
    """Return the window for a text such as ``#10:#12`` or ``1.5ms:20ms``.

    Raises:
        UsageError: The text is not a window.
    """
    steps = _STEPS.fullmatch(text.strip())
    if steps is not None:
        return ExportWindow(steps=(int(steps[1]), int(steps[2] or steps[1])))
    ends = [_TIME.fullmatch(part.strip()) for part in text.split(":")]
    try:
        first, last = (float(end[1]) * _UNITS_US[end[2]] for end in ends if end is not None)
    except ValueError:
        first, last = 1.0, 0.0
    if last <= first:
        choices = "give marked steps, such as #10:#12, or times, such as 1.5ms:20ms"
        raise UsageError(f"--between {text!r} is not a range of steps or times; {choices}")
    return ExportWindow(times_us=(first, last))


def sources_and_shifts(traces: Traces) -> tuple[dict[str, Path], dict[str, float]]:
    """Return two mappings from the name of each rank: its file, and its clock offset in microseconds."""
    sources: dict[str, Path] = {}
    moved: dict[str, float] = {}
    for rank in traces.ranks:
        path = Path(rank.source)
        if path in sources.values():
            continue  # another GPU of the same file
        name = f"rank {rank.rank}" if rank.rank is not None else path.name
        title = name if name not in sources else rank.source
        sources[title] = path
        moved[title] = traces.matched.offsets_ns.get(rank.rank, 0) / 1e3 if rank.rank is not None else 0.0
    return sources, moved


def export_window(sources: Mapping[str, Path], moved_us: Mapping[str, float], between: ExportWindow | None) -> bytes:
    """Return the events of several captures in a time window as JSON.

    Args:
        sources: Files by rank name.
        moved_us: Clock offsets of the ranks in microseconds.
        between: The window; None for the longest marked step of the first capture, or for all of that capture without
            marked steps.

    Raises:
        UsageError: There are too many ranks, a file is an Nsight export, or the window is empty.
        NotACapture: A file is not a capture.
    """
    if len(sources) > MOST_RANKS:
        raise UsageError(
            f"--perfetto accepts at most {MOST_RANKS} ranks, not {len(sources)}; give the capture files of fewer ranks"
        )
    each = {title: _events(path) for title, path in sources.items()}
    between = between or _longest(next(iter(each.values())))
    numbers: dict[tuple[str, str], int] = {}
    found: list[Json] = []
    for title, events in each.items():
        start, end = _ends(events, between)
        for event in events:
            if _is_in(event, start, end):
                number = numbers.setdefault((title, str(event.get("pid"))), len(numbers) + 1)
                found.append(_placed(event, number, title, moved_us.get(title, 0.0)))
    if not any(_is_timed(event) for event in found):
        raise UsageError("the captures contain no event in the range of --between")
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": found})  # NaN and infinity become null


def write_export(path: Path, data: bytes) -> None:
    """Write an export, gzipped if the file name ends in ``.gz``.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_bytes(gzip.compress(data, 6) if path.suffix == ".gz" else data)


def _events(path: Path) -> list[Json]:
    if nsys.is_export(path):
        raise UsageError(f"{path} is an Nsight export; --perfetto needs a capture of PyTorch's profiler")
    data = read_content(path).document
    try:
        events = msgspec.json.decode(data).get("traceEvents")
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        events = recover_events(data).events
    if not events or not isinstance(events, list):
        raise NotACapture(f"{path} cannot be read as a profiler capture")
    return [event for event in events if isinstance(event, dict)]


def _is_timed(event: Json) -> bool:
    return _is_number(event.get("ts")) and event.get("ph") != "M"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _steps(events: Sequence[Json]) -> dict[int, Json]:
    """Return the events that mark training steps, by the number of the step."""
    marked = (event for event in events if _is_timed(event) and _is_number(event.get("dur")))
    return {int(found[1]): event for event in marked if (found := STEP.match(str(event.get("name"))))}


def _longest(events: Sequence[Json]) -> ExportWindow | None:
    steps = _steps(events)
    number = max(steps, key=lambda number: steps[number]["dur"], default=None)
    return None if number is None else ExportWindow(steps=(number, number))


def _ends(events: Sequence[Json], between: ExportWindow | None) -> tuple[float, float]:
    """Return the start and the end of the window in microseconds of the capture's clock."""
    first = min((event["ts"] for event in events if _is_timed(event)), default=0.0)
    if between is None:
        return first, float("inf")
    if between.times_us is not None:
        return first + between.times_us[0], first + between.times_us[1]
    low, high = between.steps or (0, 0)
    steps = _steps(events)
    chosen = [event for number, event in steps.items() if low <= number <= high]
    if not chosen:
        there = ", ".join(f"#{number}" for number in sorted(steps)) or "none"
        raise UsageError(f"the captures contain no marked step from #{low} to #{high}; the marked steps are {there}")
    return min(event["ts"] for event in chosen), max(event["ts"] + event["dur"] for event in chosen)


def _is_in(event: Json, start: float, end: float) -> bool:
    if event.get("ph") == "M":
        return True
    if not _is_timed(event):
        return False
    lasted = event.get("dur")
    until = event["ts"] + (lasted if lasted is not None and _is_number(lasted) else 0.0)
    return bool(event["ts"] < end and (until > start or event["ts"] >= start))


def _placed(event: Json, number: int, title: str, shift: float) -> Json:
    placed = {**event, "pid": number}
    if _is_timed(event):
        placed["ts"] = event["ts"] + shift
    if event.get("ph") == "M" and event.get("name") == "process_name":
        args = event.get("args")
        placed["args"] = {"name": f"{title}: {args.get('name', '') if isinstance(args, dict) else ''}"}
    return placed
