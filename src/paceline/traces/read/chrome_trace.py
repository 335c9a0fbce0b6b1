"""Decodes captures in Chrome's trace format, as PyTorch's profiler writes them, into columns of events.

A well-formed capture is decoded in one pass. If some events are malformed, their numbers and arguments stay
text until they are used, and broken JSON is read event by event (`lenient`).

Times are microseconds with up to three decimals. Below 2^43 us (a hundred days), a double is exact to less than
half a nanosecond. Larger times with decimals (microseconds since 1970) are decoded as decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import Any, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.traces.intervals import Ns
from paceline.traces.read.content import NotACapture
from paceline.traces.read.events import OTHERS, Args, Event, ExactEvent, LenientEvent
from paceline.traces.read.lenient import args_of, decimals_of, doubles_of, lenient_event, recover_events

_EXACT_US = 2.0**43  # times below are exact to less than half a nanosecond as doubles
_LAST_US = 4e15  # a century: sums of two times fit into 64 bits of nanoseconds
_CATEGORY, _NAME, _TS, _DUR, _ARGS = map(attrgetter, ("cat", "name", "ts", "dur", "args"))


class Distributed(msgspec.Struct):
    """The rank and the world size that the header of a capture states."""

    rank: int | None = None
    world_size: int | None = None


class Device(msgspec.Struct):
    """A GPU of the machine, as the capture's header lists it."""

    id: int | None = None
    name: str | None = None


class TraceHeader(msgspec.Struct):
    """The fields of a capture file except its events."""

    distributed: Distributed | None = msgspec.field(name="distributedInfo", default=None)
    devices: list[Device] = msgspec.field(name="deviceProperties", default_factory=list)
    host_name: str | None = None


def _decoder(event: Any) -> msgspec.json.Decoder[Any]:
    fields = [("events", list[event] | None, msgspec.field(name="traceEvents", default=None))]
    return msgspec.json.Decoder(msgspec.defstruct("_File", fields, bases=(TraceHeader,)))


_FILE = _decoder(Union[(Event, *OTHERS)])  # noqa: UP007  (of a tuple)
_EXACT_FILE = _decoder(Union[(ExactEvent, *OTHERS)])  # noqa: UP007
_LOOSE_FILE = _decoder(LenientEvent)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A decoded capture file: its header and its events."""

    top: TraceHeader
    events: Sequence[Any]  # events without a duration have None as their category
    problems: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class EventColumns:
    """Events as columns, in the order of the capture."""

    names: Sequence[str]
    categories: Sequence[str]
    start_ns: Ns
    lasted_ns: Ns  # 0 if unknown
    timed: NDArray[np.bool_]  # whether the duration is known
    args: Sequence[Args | None]
    unusable: int = 0  # number of events with malformed arguments
    wild: int = 0  # number of events left out because their times are impossible

    def __len__(self) -> int:
        return len(self.names)

    def where(self, chosen: NDArray[np.bool_]) -> EventColumns:
        """Return the events selected by a mask."""
        picked = chosen.tolist()
        return EventColumns(
            names=list(compress(self.names, picked)),
            categories=list(compress(self.categories, picked)),
            start_ns=self.start_ns[chosen],
            lasted_ns=self.lasted_ns[chosen],
            timed=self.timed[chosen],
            args=list(compress(self.args, picked)),
            unusable=self.unusable,
            wild=self.wild,
        )


class Inexact(Exception):
    """Raised if decimals of event times would be lost in double precision."""


def decode(path: Path, text: bytes) -> Document:
    """Return the decoded capture; times are doubles.

    Raises:
        NotACapture: The JSON is not a capture.
        msgspec.DecodeError: The JSON is damaged.
    """
    return _decode_with(path, text, _FILE)


def decode_exactly(path: Path, text: bytes) -> Document:
    """Return the decoded capture with all decimals of its times.

    This is slower than `decode`; the errors are the same.
    """
    return _decode_with(path, text, _EXACT_FILE)


def _decode_with(path: Path, text: bytes, decoder: msgspec.json.Decoder[Any]) -> Document:
    try:
        file = decoder.decode(text)
    except msgspec.ValidationError:
        file = _LOOSE_FILE.decode(text)
    if file.events is None:
        raise NotACapture(f"{path} is not a profiler capture: it has no traceEvents")
    return Document(top=file, events=file.events)


def columns_of(events: Sequence[Any]) -> EventColumns:
    """Return events as columns.

    Raises:
        msgspec.DecodeError: A time is not a number.
        Inexact: The capture must be decoded with `decode_exactly`.
    """
    lenient = bool(events) and isinstance(events[0], LenientEvent)
    if lenient:
        times = _of_doubles(*doubles_of(events)) or _of_decimals(*decimals_of(events))
        args, unusable = args_of(events)
    else:
        times, args, unusable = _times(events), list(map(_ARGS, events)), 0
    rows = EventColumns(
        names=list(map(_NAME, events)),
        categories=list(map(_CATEGORY, events)),
        start_ns=times.start_ns,
        lasted_ns=times.lasted_ns,
        timed=times.timed,
        args=args,
        unusable=unusable,
        wild=int((~times.possible).sum()),
    )
    return rows.where(times.possible) if rows.wild else rows


@dataclass(frozen=True, kw_only=True)
class _EventTimes:
    start_ns: Ns
    lasted_ns: Ns
    timed: NDArray[np.bool_]
    possible: NDArray[np.bool_]


def _times(events: Sequence[Event] | Sequence[ExactEvent]) -> _EventTimes:
    ts, dur = list(map(_TS, events)), list(map(_DUR, events))
    if events and isinstance(events[0], ExactEvent):
        return _of_decimals(ts, dur)
    found = _of_doubles(ts, dur)
    if found is None:
        raise Inexact
    return found


def _of_doubles(starts: Sequence[float], lasted: Sequence[float | None]) -> _EventTimes | None:
    """Return times from doubles; None if decimals of a start were possibly lost in double precision."""
    ts, dur = np.array(starts, np.float64), np.array(lasted, np.float64)  # None becomes NaN
    timed = ~np.isnan(dur)
    dur[~timed] = 0.0
    size = np.abs(ts)
    if ((size >= _EXACT_US) & (size < _LAST_US) & ((ts != np.floor(ts)) | (dur != np.floor(dur)))).any():
        return None
    possible = np.maximum(size, dur) < _LAST_US
    return _EventTimes(start_ns=_rounded(ts), lasted_ns=_rounded(dur), timed=timed, possible=possible)


def _rounded(us: NDArray[np.float64]) -> Ns:
    """Return microseconds as whole nanoseconds.

    Whole microseconds are converted separately, so that they stay exact.
    """
    known = np.clip(us, -_LAST_US, _LAST_US)
    whole = np.floor(known)
    return whole.astype(np.int64) * 1000 + np.rint((known - whole) * 1000).astype(np.int64)


def _of_decimals(starts: Sequence[Decimal], lasted: Sequence[Decimal | None]) -> _EventTimes:
    limit = Decimal(_LAST_US)

    def nanoseconds(values: Sequence[Decimal | None]) -> Ns:
        return np.fromiter((round(min(max(us or 0, -limit), limit) * 1000) for us in values), np.int64, len(values))

    possible = (max(abs(ts), us or 0) < limit for ts, us in zip(starts, lasted, strict=True))
    return _EventTimes(
        start_ns=nanoseconds(starts),
        lasted_ns=nanoseconds(lasted),
        timed=np.array([us is not None for us in lasted], bool),
        possible=np.fromiter(possible, bool, len(starts)),
    )


def recover(path: Path, text: bytes, error: Exception) -> Document:
    """Return the intact events of a file with broken JSON.

    Raises:
        NotACapture: No event could be read.
    """
    found = recover_events(text)
    complete = [event for event in found.events if event.get("ph", "X") == "X"]
    if not complete:
        raise NotACapture(f"{path} cannot be read as a profiler capture: {error}") from error
    try:
        top = msgspec.convert(found.top, TraceHeader, strict=False)
    except msgspec.ValidationError:
        top = TraceHeader()
    events = [event for each in complete if (event := lenient_event(each)) is not None]
    lost = found.lost + len(complete) - len(events)
    said = f"{path}: damaged ({error}); {len(events):,} events were read"
    if found.repaired:
        said += f", {found.repaired:,} of them after a repair"
    if lost:
        where = f", the first at character {found.first_lost:,}" if found.first_lost is not None else ""
        said += f", {lost:,} were lost{where}"
    return Document(top=top, events=events, problems=(said,))
