"""Reads captures of PyTorch's profiler: GPU events, launches, host waits, marked steps, collectives."""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter, call
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.traces.capture import (
    COMMUNICATION,
    Capture,
    CollectiveCall,
    GpuEvents,
    HostActivity,
    Launches,
    MarkedStep,
)
from paceline.traces.intervals import Union, union_of
from paceline.traces.read.chrome_trace import (
    Document,
    EventColumns,
    Inexact,
    columns_of,
    decode,
    decode_exactly,
    recover,
)
from paceline.traces.read.content import read_content
from paceline.traces.read.event_classes import class_of, is_gloo, is_loader, is_serial_loader, is_synchronising
from paceline.traces.read.events import NO_ARGS, Args

_KINDS = (
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all|dispatch|combine", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("send_recv", re.compile(r"send_?recv|send|recv", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
)
_ITEM_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_COPY_CATEGORIES = GPU_CATEGORIES - {"kernel", "Kernel"}
_LAUNCHING = re.compile("runtime|driver", re.IGNORECASE)  # categories of calls that launch GPU work or wait for it
_ANNOTATION = "user_annotation"
_NO_MARKS = frozenset({"python_function", "gpu_user_annotation", "overhead", "Trace"})
_BETWEEN_TWO = frozenset({"send", "recv"})
_TOO_LARGE = 1 << 63
STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_CATEGORY = attrgetter("cat")
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


def read(path: Path) -> Capture:
    """Read a capture. If it is damaged, its intact part is read, and a message about the damage is in `problems`.

    Raises:
        NotACapture: The file is not a capture, or nothing of it could be read.
    """
    content = read_content(path)
    text = content.document
    with _no_collection():
        try:
            try:
                return _capture(path, decode(path, text), content.problems)
            except Inexact:
                return _capture(path, decode_exactly(path, text), content.problems)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _capture(path, recover(path, text, error), content.problems)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, which would slow down the creation of millions of objects."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _capture(path: Path, document: Document, problems: Sequence[str]) -> Capture:
    gpu, calls, marks = _by_use(document.events)
    args = [each or NO_ARGS for each in gpu.args]
    told = document.top.distributed
    names = {one.id: one.name for one in document.top.devices if one.id is not None}
    events = _gpu_events(gpu, args)
    devices = _column([one.device for one in args])
    device = int(devices[devices >= 0].min()) if (devices >= 0).any() else None
    return Capture(
        source=str(path),
        rank=told.rank if told is not None and told.rank is not None else _rank_in(path),
        world=told.world_size if told is not None else None,
        gpu=_gpu_name(names, device),
        device=device,
        devices=devices,
        device_names=names,
        events=events,
        launches=_launches(calls),
        steps=_steps(marks),
        host=_host(marks, calls),
        calls=[*_collectives(gpu, args, events), *_on_the_host(marks)],
        captured_ns=_captured([gpu, calls, marks]),
        host_name=document.top.host_name,
        problems=[*problems, *document.problems, *_faults(path, gpu, gpu.unusable + calls.unusable)],
    )


def _by_use(events: Sequence[Any]) -> tuple[EventColumns, EventColumns, EventColumns]:
    """Return three groups of events: GPU events, runtime calls, and host ranges that can mark steps or batches."""
    uses = _Uses()
    deque(map(call, map(uses.__getitem__, map(_CATEGORY, events)), events), maxlen=0)  # a loop that runs in C
    return columns_of(uses.gpu), columns_of(uses.calls), columns_of(uses.annotations or uses.others)


def _captured(rows: Sequence[EventColumns]) -> tuple[int, int] | None:
    """Return the start of the first and the end of the last event, on GPU or host; None without events."""
    some = [each for each in rows if len(each)]
    if not some:
        return None
    starts, ends = ([int(f(each)) for each in some] for f in (lambda r: r.start_ns.min(), _last))
    return min(starts), max(ends)


def _last(rows: EventColumns) -> int:
    return int((rows.start_ns + np.maximum(rows.lasted_ns, 0)).max())


class _Uses(dict[str | None, Callable[[Any], None]]):
    """Maps each category of events to a function that adds an event to the list for its use."""

    def __init__(self) -> None:
        self.gpu: list[Any] = []
        self.calls: list[Any] = []
        self.annotations: list[Any] = []
        self.others: list[Any] = []  # older profilers have no category for annotations
        self._rest: list[Any] = []

    def __missing__(self, category: str | None) -> Callable[[Any], None]:
        put: Callable[[Any], None] = self._place(category).append
        self[category] = put
        return put

    def _place(self, category: str | None) -> list[Any]:
        if category is None or category in _NO_MARKS:
            return self._rest
        if category in GPU_CATEGORIES:
            return self.gpu
        if _LAUNCHING.search(category):
            return self.calls
        return self.annotations if category == _ANNOTATION else self.others


def _faults(path: Path, gpu: EventColumns, unusable: int) -> list[str]:
    """Return messages about malformed events of a file."""
    found = []
    if gpu.wild:
        found.append(f"{path}: {gpu.wild:,} GPU events have impossible times and are ignored")
    negative = int((gpu.lasted_ns < 0).sum())
    if negative:
        found.append(
            f"{path}: {negative:,} GPU events end before they begin, and are treated as events without duration"
        )
    if unusable:
        found.append(f"{path}: the arguments of {unusable:,} events are malformed")
    return found


def _gpu_name(names: Mapping[int, str | None], device: int | None) -> str | None:
    """Return the name of a GPU; None if it is unknown.

    AMD's profiler numbers devices differently from torch. If the number is unknown, the name is that of all GPUs,
    provided they have the same name.
    """
    if device is None or device in names:
        return names.get(device) if device is not None else None
    told = set(names.values())
    return told.pop() if len(told) == 1 else None


def _rank_in(path: Path) -> int | None:
    """Return the rank in the name of the file or of its folder; None without one."""
    found = _RANK_IN_NAME.search(path.name) or _RANK_IN_NAME.fullmatch(path.absolute().parent.name)
    return int(found[1]) if found else None


def _gpu_events(gpu: EventColumns, args: Sequence[Args]) -> GpuEvents:
    places: dict[str, int] = {}
    name = np.array([places.setdefault(each, len(places)) for each in gpu.names], np.int32)
    names = list(places)
    return GpuEvents(
        start_ns=gpu.start_ns,
        end_ns=gpu.start_ns + gpu.lasted_ns,
        class_=_classes(gpu, args, name, names),
        name=name,
        stream=_column([one.stream for one in args]),
        correlation=_column([one.correlation for one in args]),
        names=names,
    )


def _classes(
    gpu: EventColumns, args: Sequence[Args], name: NDArray[np.int32], names: Sequence[str]
) -> NDArray[np.uint8]:
    """Return the class of each GPU event. Each combination of name and category is classified only once."""
    copies = np.array([category in _COPY_CATEGORIES for category in gpu.categories], bool)
    collective = np.array([one.collective is not None for one in args], bool)
    kinds, place = np.unique(name.astype(np.int64) * 4 + copies * 2 + collective, return_inverse=True)
    known = [class_of(names[k >> 2], is_copy=bool(k & 2), is_collective=bool(k & 1)) for k in kinds.tolist()]
    return np.array(known, np.uint8)[place]


def _host(marks: EventColumns, calls: EventColumns) -> HostActivity:
    fetches = _named(marks, is_loader)
    loader, serial = _covered(fetches), _covered(_named(fetches, is_serial_loader))
    return HostActivity(
        loader=loader,
        loader_is_serial=2 * serial.length_ns > loader.length_ns if loader.length_ns else None,
        synchronising=_covered(_named(calls, is_synchronising)),
    )


def _named(rows: EventColumns, wanted: Callable[[str], object]) -> EventColumns:
    """Return the rows that have a duration and a name for which `wanted` is true. Each name is tested only once."""
    names = {name for name in set(rows.names) if wanted(name)}
    return rows.where(np.array([name in names for name in rows.names], bool) & rows.timed)


def _covered(rows: EventColumns) -> Union:
    """Return the union of the time intervals of the rows, over all threads."""
    return union_of(rows.start_ns, rows.start_ns + rows.lasted_ns)


def _collectives(gpu: EventColumns, args: Sequence[Args], events: GpuEvents) -> list[CollectiveCall]:
    """Return the collectives among the GPU events."""
    return [
        _call(gpu.names[place], args[place], int(events.start_ns[place]), int(events.end_ns[place]))
        for place in np.flatnonzero(events.class_ == COMMUNICATION).tolist()
    ]


def _on_the_host(marks: EventColumns) -> list[CollectiveCall]:
    """Return the collectives of gloo, which run on host threads; their process group is not recorded."""
    own = _named(marks, is_gloo)
    times = zip(own.names, own.start_ns.tolist(), (own.start_ns + own.lasted_ns).tolist(), strict=True)
    return [
        CollectiveCall(kind=collective_kind(name), group="gloo", start_ns=start, end_ns=end)
        for name, start, end in times
    ]


def _call(name: str, args: Args, start_ns: int, end_ns: int) -> CollectiveCall:
    numbers = max((n for n in (args.given, args.got) if n is not None), default=None)
    width = item_bytes(args.dtype)
    return CollectiveCall(
        kind=collective_kind(args.collective or name),
        group=args.group or "",
        start_ns=start_ns,
        end_ns=max(start_ns, end_ns),
        bytes=numbers * width if numbers is not None and width is not None else None,
        size=args.size,
        members=args.members or "",
        number=args.number,
        between_two=args.collective in _BETWEEN_TWO,
    )


def _column(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return the numbers as an array, with -1 for missing or invalid values."""
    try:
        return np.array([-1 if value is None else value for value in values], np.int64)
    except (ValueError, TypeError, OverflowError):
        known = (v if isinstance(v, int) and abs(v) < _TOO_LARGE else -1 for v in values)
        return np.fromiter(known, np.int64, len(values))


def _launches(calls: EventColumns) -> Launches:
    correlation = [None if args is None else args.correlation for args in calls.args]
    launching = np.array([each is not None for each in correlation], bool)
    return Launches(
        start_ns=calls.start_ns[launching],
        end_ns=(calls.start_ns + calls.lasted_ns)[launching],
        correlation=_column(correlation)[launching],
    )


def _steps(marks: EventColumns) -> list[MarkedStep]:
    own = _named(marks, STEP.match)
    ends = own.start_ns + own.lasted_ns
    times = zip(own.names, own.start_ns.tolist(), ends.tolist(), strict=True)
    return [MarkedStep(name=name, start_ns=start, end_ns=end) for name, start, end in times]


def collective_kind(name: str) -> str:
    """Return the kind of a collective from the name of its kernel or from the recorded name of the collective."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def item_bytes(dtype: str | None) -> int | None:
    """Return the bytes per element of a torch dtype, named as in captures; None if unknown."""
    return _ITEM_BYTES.get((dtype or "").lower())
