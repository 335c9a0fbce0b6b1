"""Events of Chrome's trace format. Only the fields that Paceline uses are decoded.

Only complete events (``"ph": "X"``) have a duration. All other events are decoded to empty objects.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec

NOTHING = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False):
    """The arguments of GPU events and of launches."""

    stream: int | str | None = None
    correlation: int | None = None
    device: int | None = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    group: str | None = msgspec.field(name="Process Group Name", default=None)
    given: int | None = msgspec.field(name="In msg nelems", default=None)
    got: int | None = msgspec.field(name="Out msg nelems", default=None)
    size: int | None = msgspec.field(name="Group size", default=None)
    dtype: str | None = None
    members: str | None = msgspec.field(name="Process Group Ranks", default=None)
    number: int | None = msgspec.field(name="Seq", default=None)


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event (phase ``X``); its times are microseconds in double precision."""

    ts: float
    name: str = ""
    cat: str = ""
    dur: float | None = None
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event (phase ``X``); its times are microseconds with all decimals."""

    ts: Decimal
    name: str = ""
    cat: str = ""
    dur: Decimal | None = None
    args: Args | None = None


class LenientEvent(msgspec.Struct, gc=False):
    """An event of a capture in which some events are malformed; numbers and arguments stay text."""

    name: str = ""
    cat: str = ""
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: msgspec.Raw = NOTHING


class RecoveredEvent(msgspec.Struct):
    """The fields that an event of a damaged file must have, with their types."""

    ts: float
    name: str = ""
    cat: str = ""
    dur: float | None = None


# Flows, instants, counters, metadata and others. Their category is None, because they are not used.
OTHERS = tuple(
    msgspec.defstruct(f"_Phase_{ord(p)}", [], tag_field="ph", tag=p, gc=False, namespace={"cat": None})
    for p in "MsftiICbenBEPpNOD"
)
