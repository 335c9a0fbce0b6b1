"""Kineto JSON, as PyTorch's profiler writes it, plain or gzipped, to a capture.

Times come as microseconds with up to three decimals. Below 2^41 us a double holds them to a quarter of a nanosecond;
what is larger and not whole (microseconds since 1970 with decimals) is read once more as decimal numbers.
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.traces.classes import class_of, is_loader, is_serial_loader, is_synchronising
from paceline.traces.collectives import Call, item_bytes, kind_of
from paceline.traces.content import NotACapture, content_of
from paceline.traces.intervals import Ns, Union, union_of
from paceline.traces.model import COMMUNICATION, Capture, GpuEvents, Host, Launches, Step
from paceline.traces.salvage import salvaged

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_COPY_CATEGORIES = GPU_CATEGORIES - {"kernel", "Kernel"}
_EXACT_US = 2.0**41  # times below are exact to a quarter of a nanosecond as doubles
_TOO_LARGE = 1 << 63
_LAST_US = 4e15  # a century: sums of two times fit into 64 bits of nanoseconds
_LAST = Decimal(_LAST_US)
STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


class _Args(msgspec.Struct):
    stream: int | str | None = None
    correlation: int | None = None
    device: int | None = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    group: str | None = msgspec.field(name="Process Group Name", default=None)
    given: int | None = msgspec.field(name="In msg nelems", default=None)
    got: int | None = msgspec.field(name="Out msg nelems", default=None)
    size: int | None = msgspec.field(name="Group size", default=None)
    dtype: str | None = None


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float | None = None
    args: _Args | None = None


class _ExactEvent(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: Decimal = Decimal(0)
    dur: Decimal | None = None
    args: _Args | None = None


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _Device(msgspec.Struct):
    id: int | None = None
    name: str | None = None


class _File(msgspec.Struct):
    events: list[_Event] | None = msgspec.field(name="traceEvents", default=None)
    distributed: _Distributed | None = msgspec.field(name="distributedInfo", default=None)
    devices: list[_Device] = msgspec.field(name="deviceProperties", default_factory=list)


class _ExactFile(msgspec.Struct):
    events: list[_ExactEvent] = msgspec.field(name="traceEvents", default_factory=list)


_FILE = msgspec.json.Decoder(_File)
_EXACT_FILE = msgspec.json.Decoder(_ExactFile)


def read(path: Path) -> Capture:
    """Read a capture; of a damaged one what can be read, with what could not among its problems.

    Raises:
        NotACapture: It is none, or nothing of it could be read.
    """
    content = content_of(path)
    with _no_collection():
        file, events, problems = _decoded(path, content.document)
        problems = [*content.problems, *problems]
        gpu = [event for event in events if event.cat in GPU_CATEGORIES]
        wild = [event for event in gpu if not _is_possible(event)]
        if wild:
            problems.append(f"{path}: {len(wild):,} GPU events have times that no clock shows, and are left out")
            gpu = [event for event in gpu if _is_possible(event)]
        negative = sum(event.dur is not None and event.dur < 0 for event in gpu)
        if negative:
            problems.append(f"{path}: {negative:,} GPU events end before they begin, and count as empty")
        return _capture(path, file, events, gpu, problems)


def _is_possible(event: Any) -> bool:
    return abs(event.ts) < _LAST_US and (event.dur is None or event.dur < _LAST_US)


def _decoded(path: Path, data: bytes) -> tuple[_File, Sequence[Any], list[str]]:
    try:
        file = _FILE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _salvaged(path, data, error)
    if file.events is None:
        raise NotACapture(f"{path} is no profiler capture: it has no traceEvents")
    if any(_is_inexact(event) for event in file.events if event.cat in GPU_CATEGORIES):
        return file, _EXACT_FILE.decode(data).events, []
    return file, file.events, []


def _salvaged(path: Path, data: bytes, error: Exception) -> tuple[_File, Sequence[Any], list[str]]:
    """Read what can be read of a file that is no JSON as it should be."""
    found = salvaged(data)
    if not found.events:
        raise NotACapture(f"{path} is no profiler capture that could be read: {error}") from error
    try:
        file = msgspec.convert(found.top, _File, strict=False)
    except msgspec.ValidationError:
        file = _File()
    events = [event for each in found.events if (event := _converted(each)) is not None]
    lost = found.lost + len(found.events) - len(events)
    said = f"{path}: damaged ({error}); {len(events):,} events are read"
    if found.repaired:
        said += f", {found.repaired:,} of them repaired"
    if lost:
        where = f", the first at character {found.first_lost:,}" if found.first_lost is not None else ""
        said += f", {lost:,} are lost{where}"
    return file, events, [said]


def _converted(event: dict[str, Any]) -> _Event | None:
    """Return the fields of an event that count, its arguments only where they are usable; None without a time."""
    own = {key: event[key] for key in ("name", "cat", "ts", "dur", "args") if event.get(key) is not None}
    for fields in (own, {key: value for key, value in own.items() if key != "args"}):
        try:
            found = msgspec.convert(fields, _Event, strict=False)
        except (msgspec.ValidationError, OverflowError):
            continue
        return found if math.isfinite(found.ts) and math.isfinite(found.dur or 0.0) else None
    return None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Leave the cyclic collector out while a million objects without cycles are made: it took most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _is_inexact(event: _Event) -> bool:
    """Say whether decimals of a time may have been lost; where durations have some, times had them too."""
    return abs(event.ts) >= _EXACT_US and not (event.ts.is_integer() and (event.dur or 0.0).is_integer())


def _capture(path: Path, file: _File, events: Sequence[Any], gpu: Sequence[Any], problems: Sequence[str]) -> Capture:
    told = file.distributed or _Distributed()
    devices = {e.args.device for e in gpu if e.args is not None and e.args.device is not None}
    device = min(devices, default=None)
    names = {one.id: one.name for one in file.devices}
    gpu_events = _gpu_events(gpu)
    return Capture(
        source=str(path),
        rank=told.rank if told.rank is not None else _rank_in(path.name),
        world=told.world_size,
        gpu=names.get(device),
        device=device,
        events=gpu_events,
        launches=_launches(events),
        steps=_steps(events),
        host=_host(events),
        calls=_calls(gpu, gpu_events),
        problems=problems,
    )


def _rank_in(name: str) -> int | None:
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


def _gpu_events(gpu: Sequence[Any]) -> GpuEvents:
    places: dict[str, int] = {}
    name = np.fromiter((places.setdefault(e.name, len(places)) for e in gpu), np.int32, len(gpu))
    start = nanoseconds([e.ts for e in gpu])
    return GpuEvents(
        start_ns=start,
        end_ns=start + nanoseconds([e.dur or 0 for e in gpu]),
        class_=_classes(gpu),
        name=name,
        stream=_column(gpu, "stream"),
        correlation=_column(gpu, "correlation"),
        names=list(places),
    )


def _classes(gpu: Sequence[Any]) -> NDArray[np.uint8]:
    known: dict[tuple[str, str, bool], int] = {}
    found = np.empty(len(gpu), np.uint8)
    for place, event in enumerate(gpu):
        key = event.name, event.cat, event.args is not None and event.args.collective is not None
        if key not in known:
            known[key] = class_of(event.name, is_copy=event.cat in _COPY_CATEGORIES, is_collective=key[2])
        found[place] = known[key]
    return found


def _host(events: Sequence[Any]) -> Host:
    loader, serial = _ranges(events, is_loader), _ranges(events, is_serial_loader)
    return Host(
        loader=loader,
        loader_is_serial=2 * serial.length_ns > loader.length_ns if loader.length_ns else None,
        synchronising=_ranges(events, is_synchronising),
    )


def _ranges(events: Sequence[Any], chosen: Callable[[str], bool]) -> Union:
    """Return where events of some names are, on whatever thread."""
    known: dict[str, bool] = {}
    own = []
    for event in events:
        name = event.name
        if name not in known:
            known[name] = chosen(name)
        if known[name] and event.dur is not None:
            own.append(event)
    starts = nanoseconds([event.ts for event in own])
    return union_of(starts, starts + nanoseconds([event.dur for event in own]))


def _calls(gpu: Sequence[Any], events: GpuEvents) -> list[Call]:
    """Return the collectives among GPU events."""
    return [
        _call(gpu[place], int(events.start_ns[place]), int(events.end_ns[place]))
        for place in np.flatnonzero(events.class_ == COMMUNICATION).tolist()
    ]


def _call(event: Any, start_ns: int, end_ns: int) -> Call:
    args = event.args or _Args()
    numbers = max((n for n in (args.given, args.got) if n is not None), default=None)
    width = item_bytes(args.dtype)
    return Call(
        kind=kind_of(args.collective or event.name),
        group=args.group or "",
        start_ns=start_ns,
        end_ns=max(start_ns, end_ns),
        bytes=numbers * width if numbers is not None and width is not None else None,
        size=args.size,
    )


def _column(events: Sequence[Any], key: str) -> NDArray[np.int64]:
    values = (getattr(e.args, key) if e.args is not None else None for e in events)
    return np.fromiter((v if isinstance(v, int) and abs(v) < _TOO_LARGE else -1 for v in values), np.int64, len(events))


def _launches(events: Sequence[Any]) -> Launches:
    host = [e for e in events if e.args is not None and e.args.correlation is not None and e.cat not in GPU_CATEGORIES]
    start = nanoseconds([e.ts for e in host])
    return Launches(
        start_ns=start,
        end_ns=start + nanoseconds([e.dur or 0 for e in host]),
        correlation=_column(host, "correlation"),
    )


def _steps(events: Sequence[Any]) -> list[Step]:
    marked = [e for e in events if e.dur is not None and e.name.startswith("ProfilerStep") and STEP.match(e.name)]
    starts = nanoseconds([e.ts for e in marked])
    ends = starts + nanoseconds([e.dur for e in marked])
    return [
        Step(name=e.name, start_ns=int(start), end_ns=int(end))
        for e, start, end in zip(marked, starts, ends, strict=True)
    ]


def nanoseconds(microseconds: Sequence[float | Decimal]) -> Ns:
    """Return times in whole nanoseconds; of doubles the whole microseconds apart, which they hold exactly."""
    if microseconds and isinstance(microseconds[0], Decimal):
        exact = (round(min(max(us, -_LAST), _LAST) * 1000) for us in microseconds)
        return np.fromiter(exact, np.int64, len(microseconds))
    values = np.clip(np.asarray(microseconds, np.float64), -_LAST_US, _LAST_US)
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
