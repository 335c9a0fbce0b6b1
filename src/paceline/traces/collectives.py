"""Which collectives were waited for, by whom, and how fast was the rest? Matched across ranks, on aligned clocks.

Ranks run the collectives of a group in the same order: the k-th of a kind and a group on one rank is the k-th on the
others. With s_r and e_r its start and end on rank r, on aligned clocks,

    skew = max s_r - min s_r          transfer = max e_r - max s_r          last arriver = argmax s_r

A collective cannot end anywhere before all have come, so its ends fall together: clocks of hosts are aligned by the
median over collectives of e_r against the median rank's. Bandwidth is what each link has to carry ("bus bandwidth", as
nccl-tests count it): bytes / transfer times 2 (n - 1) / n for an all-reduce, (n - 1) / n for gathering, scattering and
all-to-all, 1 for the rest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

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
_SCALED = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_ITEM_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_SHARED_CLOCK_NS = 50_000  # ends that are closer show one clock; aligning by them would only add their noise


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective as one rank ran it."""

    kind: str  # "all_reduce"
    group: str  # name of the process group; "" where it is not told
    start_ns: int
    end_ns: int
    bytes: int | None = None  # the larger of what goes in and what comes out of one rank
    size: int | None = None  # ranks of the group


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective over the ranks that have it; times on aligned clocks."""

    kind: str
    group: str
    number: int  # of its kind and group, from 0
    ranks: int
    start_ns: int  # of the first arriver
    skew_ns: int
    transfer_ns: int
    last: int  # rank that came last
    waited_ns: int  # by all others together, for it
    bus_bytes_per_s: float | None  # None: its size is not told


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The collectives of some ranks."""

    collectives: Sequence[Collective]
    offsets_ns: Mapping[int, int]  # by which the clock of a rank was moved
    waited_ns: Mapping[int, int]  # of each rank: in collectives, until the last one had come
    problems: Sequence[str]


def kind_of(name: str) -> str:
    """Return what a kernel or a collective of that name does."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def item_bytes(dtype: str | None) -> int | None:
    """Return the bytes of a number of torch's type, as captures write it."""
    return _ITEM_BYTES.get((dtype or "").lower())


def matched(calls: Mapping[int, Sequence[Call]]) -> Matched:
    """Match the collectives of several ranks.

    Args:
        calls: By rank, in any order.
    """
    by_key: dict[tuple[str, str], dict[int, list[Call]]] = defaultdict(dict)
    for rank, own in calls.items():
        for call in sorted(own, key=lambda call: call.start_ns):
            by_key[call.kind, call.group].setdefault(rank, []).append(call)
    offsets = _offsets(by_key)
    problems, found = [], []
    waited: dict[int, int] = defaultdict(int)
    for (kind, group), ranks in by_key.items():
        counts = {len(own) for own in ranks.values()}
        if len(counts) > 1:
            named = f"{kind} of group {group}" if group else kind
            problems.append(
                f"{named}: ranks have between {min(counts)} and {max(counts)} of them: the first ones are matched"
            )
        for number in range(min(counts) if len(ranks) > 1 else 0):
            starts = {rank: own[number].start_ns + offsets.get(rank, 0) for rank, own in ranks.items()}
            found.append(_collective(kind, group, number, ranks, starts, offsets))
            arrived = max(starts.values())
            for rank, start in starts.items():
                waited[rank] += arrived - start
    return Matched(
        collectives=sorted(found, key=lambda one: one.start_ns),
        offsets_ns={rank: offset for rank, offset in offsets.items() if offset},
        waited_ns=dict(waited),
        problems=problems,
    )


def _offsets(by_key: Mapping[tuple[str, str], Mapping[int, Sequence[Call]]]) -> dict[int, int]:
    """Return by how much each rank's clock is to be moved: not at all where their ends fall together as they are."""
    late: dict[int, list[float]] = defaultdict(list)
    for ranks in by_key.values():
        if len(ranks) < 2:
            continue
        for number in range(min(map(len, ranks.values()))):
            ends = {rank: own[number].end_ns for rank, own in ranks.items()}
            middle = median(ends.values())
            for rank, end in ends.items():
                late[rank].append(end - middle)
    moved = {rank: -round(median(each)) for rank, each in late.items()}
    return moved if any(abs(offset) > _SHARED_CLOCK_NS for offset in moved.values()) else dict.fromkeys(moved, 0)


def _collective(
    kind: str,
    group: str,
    number: int,
    ranks: Mapping[int, Sequence[Call]],
    starts: Mapping[int, int],
    offsets: Mapping[int, int],
) -> Collective:
    own = {rank: calls[number] for rank, calls in ranks.items()}
    ends = [call.end_ns + offsets.get(rank, 0) for rank, call in own.items()]
    last = max(starts, key=lambda rank: (starts[rank], rank))
    arrived = starts[last]
    transfer = max(0, max(ends) - arrived)
    size = max((call.bytes for call in own.values() if call.bytes is not None), default=None)
    members = max((call.size for call in own.values() if call.size is not None), default=len(own))
    return Collective(
        kind=kind,
        group=group,
        number=number,
        ranks=len(own),
        start_ns=min(starts.values()),
        skew_ns=arrived - min(starts.values()),
        transfer_ns=transfer,
        last=last,
        waited_ns=sum(arrived - start for start in starts.values()),
        bus_bytes_per_s=_bandwidth(kind, size, members, transfer),
    )


def _bandwidth(kind: str, size: int | None, members: int, transfer_ns: int) -> float | None:
    if size is None or transfer_ns <= 0 or members < 2:
        return None
    factor = _SCALED[kind] * (members - 1) / members if kind in _SCALED else 1.0
    return factor * size / (transfer_ns / 1e9)
