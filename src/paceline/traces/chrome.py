"""Events of a capture in Chrome's trace format, as PyTorch's profiler writes it: those of some categories, as columns.

Only complete events (``"ph": "X"``) last, and of most not even the times count: what is of no use is passed over while
the text is decoded, and numbers and arguments stay text until somebody asks for them.

Times come as microseconds with up to three decimals. Below 2^41 us a double holds them to a quarter of a nanosecond;
what is larger and not whole (microseconds since 1970 with decimals) is read as decimal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import Any, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.traces.content import NotACapture
from paceline.traces.intervals import Ns
from paceline.traces.salvage import salvaged

_EXACT_US = 2.0**41  # times below are exact to a quarter of a nanosecond as doubles
_LAST_US = 4e15  # a century: sums of two times fit into 64 bits of nanoseconds
_NOTHING = msgspec.Raw(b"")
_CATEGORY, _NAME, _TS, _DUR, _ARGS = map(attrgetter, ("cat", "name", "ts", "dur", "args"))


class _Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    name: str = ""
    cat: str = ""
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    args: msgspec.Raw = _NOTHING


class _Untagged(msgspec.Struct, gc=False):
    """An event of a file in which some have no phase."""

    name: str = ""
    cat: str = ""
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    args: msgspec.Raw = _NOTHING


class _Salvaged(msgspec.Struct):
    """What has to be right of an event in a damaged file."""

    ts: float
    name: str = ""
    cat: str = ""
    dur: float | None = None


# Flows, instants, counters, metadata and others: nothing of them is kept.
_OTHERS = tuple(msgspec.defstruct(f"_Phase_{ord(p)}", [], tag_field="ph", tag=p, gc=False) for p in "MsftiICbenBEPpNOD")


class Distributed(msgspec.Struct):
    """Which rank a capture is of."""

    rank: int | None = None
    world_size: int | None = None


class Device(msgspec.Struct):
    """A GPU of the machine."""

    id: int | None = None
    name: str | None = None


class Top(msgspec.Struct):
    """What stands beside the events."""

    distributed: Distributed | None = msgspec.field(name="distributedInfo", default=None)
    devices: list[Device] = msgspec.field(name="deviceProperties", default_factory=list)


def _decoder(event: Any) -> msgspec.json.Decoder[Any]:
    fields = [("events", list[event] | None, msgspec.field(name="traceEvents", default=None))]
    return msgspec.json.Decoder(msgspec.defstruct("_File", fields, bases=(Top,)))


_FILE = _decoder(Union[(_Complete, *_OTHERS)])  # noqa: UP007  (of a tuple)
_UNTAGGED_FILE = _decoder(_Untagged)
_STARTS = msgspec.json.Decoder(list[float])  # each event has to have one
_LASTED = msgspec.json.Decoder(list[float | None])
_DECIMALS = msgspec.json.Decoder(list[Decimal | None])


@dataclass(frozen=True, kw_only=True)
class Document:
    """A capture that is decoded."""

    top: Top
    events: Sequence[Any]
    problems: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Events as columns, in the order of the capture."""

    names: Sequence[str]
    categories: Sequence[str]
    start_ns: Ns
    lasted_ns: Ns  # 0 where it is not told
    timed: NDArray[np.bool_]  # whether it is told
    args: Sequence[msgspec.Raw]
    wild: int = 0  # that were left out: no clock shows their times

    def __len__(self) -> int:
        return len(self.names)

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return some of them."""
        picked = chosen.tolist()
        return Rows(
            names=list(compress(self.names, picked)),
            categories=list(compress(self.categories, picked)),
            start_ns=self.start_ns[chosen],
            lasted_ns=self.lasted_ns[chosen],
            timed=self.timed[chosen],
            args=list(compress(self.args, picked)),
            wild=self.wild,
        )


def decoded(path: Path, text: bytes) -> Document:
    """Decode a capture.

    Raises:
        NotACapture: It is JSON, but none.
        msgspec.DecodeError: It is damaged.
    """
    kind: type[_Complete | _Untagged] = _Complete
    try:
        file = _FILE.decode(text)
    except msgspec.ValidationError:
        file, kind = _UNTAGGED_FILE.decode(text), _Untagged
    if file.events is None:
        raise NotACapture(f"{path} is no profiler capture: it has no traceEvents")
    own = [event for event in file.events if type(event) is kind]
    return Document(top=file, events=own)


def categories_of(document: Document) -> list[str]:
    """Return the category of each event."""
    return list(map(_CATEGORY, document.events))


def chosen(document: Document, categories: Sequence[str], kinds: Sequence[Collection[str]]) -> list[list[Any]]:
    """Return the events of some categories, for each of several kinds that have none in common.

    Args:
        document: With the events.
        categories: Of each, as `categories_of` gives them.
        kinds: The categories that make each.
    """
    number = {category: place for place, kind in enumerate(kinds) for category in kind}
    of_each = {category: number.get(category, len(kinds)) for category in set(categories)}
    column = np.fromiter(map(of_each.__getitem__, categories), np.int8, len(categories))
    events = document.events
    return [[events[at] for at in np.flatnonzero(column == place).tolist()] for place in range(len(kinds))]


def rows_of(events: Sequence[Any]) -> Rows:
    """Return events as columns.

    Raises:
        msgspec.DecodeError: A time is no number.
    """
    ts, dur = _times(list(map(_TS, events)), list(map(_DUR, events)))
    possible = np.maximum(np.abs(_numbers(ts)), _numbers(dur)) < _LAST_US
    rows = Rows(
        names=list(map(_NAME, events)),
        categories=list(map(_CATEGORY, events)),
        start_ns=nanoseconds(ts),
        lasted_ns=nanoseconds(dur),
        timed=np.array([each is not None for each in dur], bool),
        args=list(map(_ARGS, events)),
        wild=int((~possible).sum()),
    )
    return rows.where(possible) if rows.wild else rows


_Microseconds = Sequence[float | None] | Sequence[Decimal | None]


def _times(ts: Sequence[msgspec.Raw], dur: Sequence[msgspec.Raw]) -> tuple[_Microseconds, _Microseconds]:
    """Return starts and durations as doubles, or as decimal numbers where doubles would lose some of them."""
    starts_text = b"[" + b",".join(text or b"null" for text in ts) + b"]"
    lasted_text = b"[" + b",".join(text or b"null" for text in dur) + b"]"
    starts, lasted = _STARTS.decode(starts_text), _LASTED.decode(lasted_text)
    if not _are_inexact(_numbers(starts), _numbers(lasted)):
        return starts, lasted
    return _DECIMALS.decode(starts_text), _DECIMALS.decode(lasted_text)


def salvage(path: Path, text: bytes, error: Exception) -> Document:
    """Read what can be read of a file that is no JSON as it should be.

    Raises:
        NotACapture: Nothing can.
    """
    found = salvaged(text)
    complete = [event for event in found.events if event.get("ph", "X") == "X"]
    if not complete:
        raise NotACapture(f"{path} is no profiler capture that could be read: {error}") from error
    try:
        top = msgspec.convert(found.top, Top, strict=False)
    except msgspec.ValidationError:
        top = Top()
    events = [event for each in complete if (event := _converted(each)) is not None]
    lost = found.lost + len(complete) - len(events)
    said = f"{path}: damaged ({error}); {len(events):,} events are read"
    if found.repaired:
        said += f", {found.repaired:,} of them repaired"
    if lost:
        where = f", the first at character {found.first_lost:,}" if found.first_lost is not None else ""
        said += f", {lost:,} are lost{where}"
    return Document(top=top, events=events, problems=(said,))


def _converted(event: dict[str, Any]) -> _Untagged | None:
    """Return the fields of an event that count; None without a time."""
    own = {key: event[key] for key in ("name", "cat", "ts", "dur") if event.get(key) is not None}
    args = event.get("args")
    try:
        found = msgspec.convert(own, _Salvaged, strict=False)
        if not (math.isfinite(found.ts) and math.isfinite(found.dur or 0.0)):
            return None
        ts, dur, known = (msgspec.Raw(msgspec.json.encode(each)) for each in (found.ts, found.dur, args))
        return _Untagged(found.name, found.cat, ts, dur, known if isinstance(args, dict) else _NOTHING)
    except (msgspec.ValidationError, msgspec.EncodeError, OverflowError):
        return None


def _are_inexact(ts: NDArray[np.float64], dur: NDArray[np.float64]) -> bool:
    """Say whether decimals of times may have been lost; where durations have some, times had them too."""
    whole = (ts == np.floor(ts)) & (dur == np.floor(dur))
    return bool(((np.abs(ts) >= _EXACT_US) & (np.abs(ts) < _LAST_US) & ~whole).any())


def _numbers(values: _Microseconds) -> NDArray[np.float64]:
    """Return doubles, 0 where there is none."""
    found = np.array(values, np.float64)  # what is None becomes NaN
    found[np.isnan(found)] = 0.0
    return found


def nanoseconds(microseconds: _Microseconds) -> Ns:
    """Return whole nanoseconds, 0 where there is none; of doubles the whole microseconds apart, which are exact."""
    if isinstance(next((us for us in microseconds if us is not None), None), Decimal):
        limit = Decimal(_LAST_US)
        exact = (round(min(max(Decimal(us or 0), -limit), limit) * 1000) for us in microseconds)
        return np.fromiter(exact, np.int64, len(microseconds))
    values = np.clip(_numbers(microseconds), -_LAST_US, _LAST_US)
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
