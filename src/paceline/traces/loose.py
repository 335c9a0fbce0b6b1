"""Events that are not what they should be: what can be used of their times and arguments.

They were decoded with both left as text, so that a fault of one event takes nothing from the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from paceline.traces.event import NOTHING, Args, LooseEvent, SalvagedEvent

_STARTS = msgspec.json.Decoder(list[float])  # each event has to have one
_LASTED = msgspec.json.Decoder(list[float | None])
_EXACT_STARTS = msgspec.json.Decoder(list[Decimal])
_EXACT_LASTED = msgspec.json.Decoder(list[Decimal | None])
_ARGS = msgspec.json.Decoder(list[Args])


def doubles_of(events: Sequence[LooseEvent]) -> tuple[list[float], list[float | None]]:
    """Return starts and durations in microseconds.

    Raises:
        msgspec.DecodeError: One is no number, or a start is missing.
    """
    return _STARTS.decode(_list_of([e.ts for e in events])), _LASTED.decode(_list_of([e.dur for e in events]))


def decimals_of(events: Sequence[LooseEvent]) -> tuple[list[Decimal], list[Decimal | None]]:
    """Return the same, with all decimals."""
    starts, lasted = _list_of([e.ts for e in events]), _list_of([e.dur for e in events])
    return _EXACT_STARTS.decode(starts), _EXACT_LASTED.decode(lasted)


def _list_of(texts: Sequence[msgspec.Raw]) -> bytes:
    return b"[" + b",".join(text or b"null" for text in texts) + b"]"


def args_of(events: Sequence[LooseEvent]) -> tuple[list[Args], int]:
    """Return the arguments of events, empty ones where there are none, and how many are not what they should be."""
    whole = [event.args or b"{}" for event in events]
    try:
        return _ARGS.decode(b"[" + b",".join(whole) + b"]"), 0
    except msgspec.DecodeError:
        found = [_usable(text) for text in whole]
        return [args for args, _ in found], sum(not fits for _, fits in found)


def _usable(text: bytes | msgspec.Raw) -> tuple[Args, bool]:
    """Return those of some arguments that are what they should be, and whether all are."""
    try:
        return _ARGS.decode(b"[" + text + b"]")[0], True
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


def loose_of(event: dict[str, Any]) -> LooseEvent | None:
    """Return the fields of a salvaged event that count; None without a time."""
    own = {key: event[key] for key in ("name", "cat", "ts", "dur") if event.get(key) is not None}
    args = event.get("args")
    try:
        found = msgspec.convert(own, SalvagedEvent, strict=False)
        if not (math.isfinite(found.ts) and math.isfinite(found.dur or 0.0)):
            return None
        ts, dur, known = (msgspec.Raw(msgspec.json.encode(each)) for each in (found.ts, found.dur, args))
        return LooseEvent(found.name, found.cat, ts, dur, known if isinstance(args, dict) else NOTHING)
    except (msgspec.ValidationError, msgspec.EncodeError, OverflowError):
        return None
