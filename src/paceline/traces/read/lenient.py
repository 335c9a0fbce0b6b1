"""Lenient parsing of captures that are malformed or damaged.

If the JSON is valid, a malformed event does not make the others unreadable: the events are decoded with their times and
arguments as text, and each is converted separately. If the JSON is broken, events are found one by one and repaired.
Broken captures occur in practice: truncated files, unescaped backslashes or quotes in a name, control characters, bytes
that are not UTF-8, integers beyond 64 bits, NaN. In broken JSON, an event is taken to begin where an object follows a
comma or the opening bracket of the list, and its first key is one that events have.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from paceline.traces.read.events import NOTHING, Args, LenientEvent, RecoveredEvent

_STARTS = msgspec.json.Decoder(list[float])  # each event must have a start
_LASTED = msgspec.json.Decoder(list[float | None])
_EXACT_STARTS = msgspec.json.Decoder(list[Decimal])
_EXACT_LASTED = msgspec.json.Decoder(list[Decimal | None])
_ARGS_DECODER = msgspec.json.Decoder(list[Args])


def doubles_of(events: Sequence[LenientEvent]) -> tuple[list[float], list[float | None]]:
    """Return starts and durations in microseconds.

    Raises:
        msgspec.DecodeError: A time is not a number, or a start is missing.
    """
    return _STARTS.decode(_list_of([e.ts for e in events])), _LASTED.decode(_list_of([e.dur for e in events]))


def decimals_of(events: Sequence[LenientEvent]) -> tuple[list[Decimal], list[Decimal | None]]:
    """Return starts and durations in microseconds with all decimals."""
    starts, lasted = _list_of([e.ts for e in events]), _list_of([e.dur for e in events])
    return _EXACT_STARTS.decode(starts), _EXACT_LASTED.decode(lasted)


def _list_of(texts: Sequence[msgspec.Raw]) -> bytes:
    return b"[" + b",".join(text or b"null" for text in texts) + b"]"


def args_of(events: Sequence[LenientEvent]) -> tuple[list[Args], int]:
    """Return the arguments of events (empty if missing), and the number of events with malformed arguments."""
    whole = [event.args or b"{}" for event in events]
    try:
        return _ARGS_DECODER.decode(b"[" + b",".join(whole) + b"]"), 0
    except msgspec.DecodeError:
        found = [_usable(text) for text in whole]
        return [args for args, _ in found], sum(not fits for _, fits in found)


def _usable(text: bytes | msgspec.Raw) -> tuple[Args, bool]:
    """Return those arguments of an event that are well-formed, and whether all arguments are."""
    try:
        return _ARGS_DECODER.decode(b"[" + text + b"]")[0], True
    except msgspec.DecodeError:
        pass
    try:
        known = msgspec.json.decode(text)
    except msgspec.DecodeError:
        known = None
    found = Args()
    for field in msgspec.structs.fields(Args):
        try:
            value = known.get(field.encode_name) if isinstance(known, dict) else None
            setattr(found, field.name, msgspec.convert(value, field.type, strict=False))
        except msgspec.ValidationError:
            continue
    return found, False


def lenient_event(event: dict[str, Any]) -> LenientEvent | None:
    """Return the used fields of a recovered event; None without a valid time."""
    own = {key: event[key] for key in ("name", "cat", "ts", "dur") if event.get(key) is not None}
    args = event.get("args")
    try:
        found = msgspec.convert(own, RecoveredEvent, strict=False)
        if not (math.isfinite(found.ts) and math.isfinite(found.dur or 0.0)):
            return None
        ts, dur, known = (msgspec.Raw(msgspec.json.encode(each)) for each in (found.ts, found.dur, args))
        return LenientEvent(found.name, found.cat, ts, dur, known if isinstance(args, dict) else NOTHING)
    except (msgspec.ValidationError, msgspec.EncodeError, OverflowError):
        return None


_BEGIN = re.compile(r'(?<=[\[,])\s*\{\s*"(?:ph|name|cat|ts|pid|tid|dur|id|s|bp|args)"\s*:')
_LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LENIENT = json.JSONDecoder(strict=False)
_TEXT = r'"{}"\s*:\s*"(.*?)"\s*(?:,\s*"(?:ph|name|cat|ts|pid|tid|dur|id|args)"\s*:|\}}|$)'
_NUMBER = r'"{}"\s*:\s*(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)'
_NAME, _CATEGORY = (re.compile(_TEXT.format(key), re.DOTALL) for key in ("name", "cat"))
_TS, _DUR = (re.compile(_NUMBER.format(key)) for key in ("ts", "dur"))
_ARGS = {key: re.compile(_NUMBER.format(key)) for key in ("stream", "correlation", "device")}
_TIMED = {"ph", "ts"}
_TOP_KEYS = ("distributedInfo", "deviceProperties", "host_name")


@dataclass(frozen=True, kw_only=True)
class RecoveredEvents:
    """The events that could be read from a broken capture."""

    events: list[dict[str, Any]]
    top: Mapping[str, Any]  # the capture's other fields, as far as they were found
    repaired: int  # events that were partly guessed
    lost: int  # events that could not be read
    first_lost: int | None  # character at which the first lost event begins


def recover_events(data: bytes) -> RecoveredEvents:
    """Return the events of a broken capture, read one by one."""
    text = data.decode("utf-8", "replace")
    events, repaired, lost, first_lost = [], 0, 0, None
    for begin, chunk in _chunks(text):
        event, guessed = _event(chunk)
        if event is None:
            lost += 1
            first_lost = begin if first_lost is None else first_lost
        elif _TIMED & event.keys():  # other objects, such as devices, have no time
            events.append(event)
            repaired += guessed
    return RecoveredEvents(events=events, top=_top(text), repaired=repaired, lost=lost, first_lost=first_lost)


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    begins = [found.end() - len(found.group().lstrip()) for found in _BEGIN.finditer(text)]
    for begin, end in itertools.pairwise([*begins, len(text)]):
        yield begin, text[begin:end]


def _event(chunk: str) -> tuple[dict[str, Any] | None, bool]:
    """Return an event (None if it is unreadable), and whether a part of it was guessed."""
    for guessed, attempt in ((False, chunk), (True, _LONE_BACKSLASH.sub(r"\\\\", chunk))):
        try:
            event = _LENIENT.raw_decode(attempt)[0]
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict):
            return None, guessed
        return (_with_valid_unicode(event) if _SURROGATE.search(attempt) else event), guessed
    return _fields(chunk), True


def _with_valid_unicode(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event in which unpaired surrogates are replaced by question marks."""
    spoken: dict[str, Any] = json.loads(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace"))
    return spoken


def _fields(chunk: str) -> dict[str, Any] | None:
    """Return the used fields of an event with invalid JSON; None if its time or category cannot be read."""
    category, ts = _CATEGORY.search(chunk), _TS.search(chunk)
    if category is None or ts is None or not _is_whole(chunk):
        return None
    name, dur = _NAME.search(chunk), _DUR.search(chunk)
    args = {key: int(float(found[1])) for key, pattern in _ARGS.items() if (found := pattern.search(chunk))}
    return {
        "name": name[1] if name else "",
        "cat": category[1],
        "ts": float(ts[1]),
        "dur": float(dur[1]) if dur else None,
        "args": args,
    }


def _is_whole(chunk: str) -> bool:
    """Return whether an event ends with its closing brace. A truncated event can lack digits of its times."""
    return chunk.rstrip().rstrip(",]} \n\t") != chunk.rstrip() or chunk.rstrip().endswith("}")


def _top(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in _TOP_KEYS:
        place = re.search(rf'"{key}"\s*:\s*', text)
        if place is not None:
            try:
                found |= _with_valid_unicode({key: _LENIENT.raw_decode(text, place.end())[0]})
            except (ValueError, RecursionError):
                continue
    return found
