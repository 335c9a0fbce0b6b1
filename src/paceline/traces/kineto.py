"""A capture of PyTorch's profiler: which of its events ran on the GPU, launched that, waited for it, or mark a step."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.traces.chrome import Document, Rows, categories_of, chosen, decoded, rows_of, salvage
from paceline.traces.classes import class_of, is_loader, is_serial_loader, is_synchronising
from paceline.traces.collectives import Call, item_bytes, kind_of
from paceline.traces.content import content_of
from paceline.traces.intervals import Union, union_of
from paceline.traces.model import COMMUNICATION, Capture, GpuEvents, Host, Launches, Step

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_COPY_CATEGORIES = GPU_CATEGORIES - {"kernel", "Kernel"}
_LAUNCHING = re.compile("runtime|driver", re.IGNORECASE)  # categories of calls that launch work, or wait for it
_ANNOTATION = "user_annotation"
_NO_MARKS = frozenset({"python_function", "gpu_user_annotation", "overhead", "Trace"})
_TOO_LARGE = 1 << 63
STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


class _Args(msgspec.Struct, gc=False):
    """Of GPU events."""

    stream: int | str | None = None
    correlation: int | None = None
    device: int | None = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    group: str | None = msgspec.field(name="Process Group Name", default=None)
    given: int | None = msgspec.field(name="In msg nelems", default=None)
    got: int | None = msgspec.field(name="Out msg nelems", default=None)
    size: int | None = msgspec.field(name="Group size", default=None)
    dtype: str | None = None


class _CallArgs(msgspec.Struct, gc=False):
    """Of calls that launch work."""

    correlation: int | None = None


_ARGS = msgspec.json.Decoder(list[_Args])
_CALL_ARGS = msgspec.json.Decoder(list[_CallArgs])


def read(path: Path) -> Capture:
    """Read a capture; of a damaged one what can be read, with what could not among its problems.

    Raises:
        NotACapture: It is none, or nothing of it could be read.
    """
    content = content_of(path)
    text = content.document
    with _no_collection():
        try:
            return _capture(path, decoded(path, text), content.problems)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _capture(path, salvage(path, text, error), content.problems)


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


def _capture(path: Path, document: Document, problems: Sequence[str]) -> Capture:
    gpu, calls, marks = _by_use(document)
    args, unusable = _read_args(gpu.args, _ARGS)
    call_args, more = _read_args(calls.args, _CALL_ARGS)
    told = document.top.distributed
    device = min((one.device for one in args if one.device is not None), default=None)
    names = {one.id: one.name for one in document.top.devices}
    events = _gpu_events(gpu, args)
    return Capture(
        source=str(path),
        rank=told.rank if told is not None and told.rank is not None else _rank_in(path.name),
        world=told.world_size if told is not None else None,
        gpu=names.get(device),
        device=device,
        events=events,
        launches=_launches(calls, call_args),
        steps=_steps(marks),
        host=_host(marks, calls),
        calls=_collectives(gpu, args, events),
        problems=[*problems, *document.problems, *_faults(path, gpu, unusable + more)],
    )


def _by_use(document: Document) -> tuple[Rows, Rows, Rows]:
    """Return what ran on the GPU, the calls of its runtime, and ranges on the host that may be steps or batches."""
    categories = categories_of(document)
    kinds = set(categories)
    gpu, calls = kinds & GPU_CATEGORIES, {kind for kind in kinds if _LAUNCHING.search(kind)}
    marks = kinds & {_ANNOTATION} or kinds - gpu - calls - _NO_MARKS  # older profilers have no category for them
    of_gpu, of_calls, of_marks = map(rows_of, chosen(document, categories, (gpu, calls, marks)))
    return of_gpu, of_calls, of_marks


def _faults(path: Path, gpu: Rows, unusable: int) -> list[str]:
    """Say what is wrong with events that were read."""
    found = []
    if gpu.wild:
        found.append(f"{path}: {gpu.wild:,} GPU events have times that no clock shows, and are left out")
    negative = int((gpu.lasted_ns < 0).sum())
    if negative:
        found.append(f"{path}: {negative:,} GPU events end before they begin, and count as empty")
    if unusable:
        found.append(f"{path}: the arguments of {unusable:,} events are not what they should be")
    return found


def _read_args(texts: Sequence[msgspec.Raw], decoder: msgspec.json.Decoder[Any]) -> tuple[list[Any], int]:
    """Return the arguments of events, empty ones where there are none, and how many are not what they should be."""
    whole = [text or b"{}" for text in texts]
    try:
        return decoder.decode(b"[" + b",".join(whole) + b"]"), 0
    except msgspec.DecodeError:
        found = [_usable(text, decoder) for text in whole]
        return [args for args, _ in found], sum(not fits for _, fits in found)


def _usable(text: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[Any]) -> tuple[Any, bool]:
    """Return those of some arguments that are what they should be, and whether all are."""
    try:
        return decoder.decode(b"[" + text + b"]")[0], True
    except msgspec.DecodeError:
        pass
    try:
        known = msgspec.json.decode(text)
    except msgspec.DecodeError:
        known = None
    (found,) = decoder.decode(b"[{}]")
    for field in msgspec.structs.fields(type(found)):
        try:
            value = known.get(field.encode_name) if isinstance(known, dict) else None
            setattr(found, field.name, msgspec.convert(value, field.type, strict=False))
        except msgspec.ValidationError:
            continue
    return found, False


def _rank_in(name: str) -> int | None:
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


def _gpu_events(gpu: Rows, args: Sequence[_Args]) -> GpuEvents:
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


def _classes(gpu: Rows, args: Sequence[_Args], name: NDArray[np.int32], names: Sequence[str]) -> NDArray[np.uint8]:
    """Return the class of each event; each kind of them is looked at once."""
    copies = np.array([category in _COPY_CATEGORIES for category in gpu.categories], bool)
    collective = np.array([one.collective is not None for one in args], bool)
    kinds, place = np.unique(name.astype(np.int64) * 4 + copies * 2 + collective, return_inverse=True)
    known = [class_of(names[k >> 2], is_copy=bool(k & 2), is_collective=bool(k & 1)) for k in kinds.tolist()]
    return np.array(known, np.uint8)[place]


def _host(marks: Rows, calls: Rows) -> Host:
    fetches = _named(marks, is_loader)
    loader, serial = _covered(fetches), _covered(_named(fetches, is_serial_loader))
    return Host(
        loader=loader,
        loader_is_serial=2 * serial.length_ns > loader.length_ns if loader.length_ns else None,
        synchronising=_covered(_named(calls, is_synchronising)),
    )


def _named(rows: Rows, wanted: Callable[[str], object]) -> Rows:
    """Return rows of some names that took time; a name is looked at once."""
    names = {name for name in set(rows.names) if wanted(name)}
    return rows.where(np.array([name in names for name in rows.names], bool) & rows.timed)


def _covered(rows: Rows) -> Union:
    """Return where rows are, on whatever thread."""
    return union_of(rows.start_ns, rows.start_ns + rows.lasted_ns)


def _collectives(gpu: Rows, args: Sequence[_Args], events: GpuEvents) -> list[Call]:
    """Return the collectives among GPU events."""
    return [
        _call(gpu.names[place], args[place], int(events.start_ns[place]), int(events.end_ns[place]))
        for place in np.flatnonzero(events.class_ == COMMUNICATION).tolist()
    ]


def _call(name: str, args: _Args, start_ns: int, end_ns: int) -> Call:
    numbers = max((n for n in (args.given, args.got) if n is not None), default=None)
    width = item_bytes(args.dtype)
    return Call(
        kind=kind_of(args.collective or name),
        group=args.group or "",
        start_ns=start_ns,
        end_ns=max(start_ns, end_ns),
        bytes=numbers * width if numbers is not None and width is not None else None,
        size=args.size,
    )


def _column(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return numbers, -1 where there is none that fits."""
    try:
        return np.array([-1 if value is None else value for value in values], np.int64)
    except (ValueError, TypeError, OverflowError):
        known = (v if isinstance(v, int) and abs(v) < _TOO_LARGE else -1 for v in values)
        return np.fromiter(known, np.int64, len(values))


def _launches(calls: Rows, args: Sequence[_CallArgs]) -> Launches:
    launching = np.array([one.correlation is not None for one in args], bool)
    return Launches(
        start_ns=calls.start_ns[launching],
        end_ns=(calls.start_ns + calls.lasted_ns)[launching],
        correlation=_column([one.correlation for one in args])[launching],
    )


def _steps(marks: Rows) -> list[Step]:
    own = _named(marks, STEP.match)
    ends = own.start_ns + own.lasted_ns
    times = zip(own.names, own.start_ns.tolist(), ends.tolist(), strict=True)
    return [Step(name=name, start_ns=start, end_ns=end) for name, start, end in times]
