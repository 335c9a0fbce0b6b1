"""Collectives, matched across ranks on aligned clocks: waiting times, the ranks that cause them, and bandwidth.

Newer captures number the collectives of a process group; the same number means the same collective. Without numbers,
the order is used: all ranks of a group run its collectives in the same order, so the k-th collective of a kind on one
rank is the k-th on the others. If some ranks recorded more collectives, those that end together are matched.
Point-to-point messages are not collectives and are left out.

With s_r and e_r the start and the end on rank r, on aligned clocks,

    skew = max s_r - min s_r          transfer = max e_r - max s_r          last arriver = argmax s_r

No collective can end before all ranks have arrived, so it ends at the same time on all ranks. This aligns the clocks of
hosts: ranks that share collectives are linked by the median difference of the ends, and offsets are summed along the
links with most collectives. The clock of the median rank is the reference. Ranks of one host share a clock, unless the
difference is so large that several hosts must have this name. Collectives that never overlap in time on all ranks are
not matched.

Bandwidth is the bus bandwidth of nccl-tests: bytes / transfer times 2 (n - 1) / n for an all-reduce, (n - 1) /
n for gather, scatter and all-to-all, 1 for the rest.

A straggler is a rank that arrives last, weighted by the time for which the others wait for it. A rank is reported if it
causes at least a tenth of all waiting time, and more than 1/n of it for n ranks.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from paceline.traces.capture import CollectiveCall

SHARED_NS = 50_000  # ends within this distance are of one clock; correcting it would only add noise
_OF_ONE_HOST_NS = 20_000_000


def clock_offsets(ends_ns: Iterable[Mapping[int, Sequence[int]]], hosts: Mapping[int, str]) -> dict[int, int]:
    """Return the offset in nanoseconds to add to the clock of each rank; 0 if no correction is needed.

    Args:
        ends_ns: For each group and kind, the end times of the collectives by rank, in the same order on each rank.
        hosts: Host names of ranks, if known.
    """
    links = _links(ends_ns)
    moved: dict[int, int] = {}
    for rank in sorted(links):
        if rank not in moved:
            late = _clock_lags(links, rank, hosts)
            middle = median_low(late.values())
            moved |= {one: middle - own if abs(middle - own) > SHARED_NS else 0 for one, own in late.items()}
    return moved


def _links(ends_ns: Iterable[Mapping[int, Sequence[int]]]) -> dict[int, dict[int, list[int]]]:
    """Return by how many nanoseconds common collectives ended later on one rank than on another.

    The result is by first rank and second rank, with one value for each collective.
    """
    links: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for group in ends_ns:
        first = min(group)
        for rank in group.keys() - {first}:
            later = [own - other for own, other in zip(group[rank], group[first], strict=True)]
            links[first][rank] += later
            links[rank][first] += [-each for each in later]
    return links


def _clock_lags(
    links: Mapping[int, Mapping[int, Sequence[int]]], root: int, hosts: Mapping[int, str]
) -> dict[int, int]:
    """Return by how many nanoseconds the clock of each connected rank is ahead of the clock of `root`.

    The differences are summed along the pairs of ranks with most common collectives.
    """
    late: dict[int, int] = {}
    ahead = [(0, root, 0)]
    while ahead:
        _, rank, own = heapq.heappop(ahead)
        if rank in late:
            continue
        late[rank] = own
        for other, later in links[rank].items():
            if other not in late:
                apart = round(median(later))
                shared = abs(apart) < _OF_ONE_HOST_NS and hosts.get(rank, rank) == hosts.get(other)
                heapq.heappush(ahead, (-len(later), other, own if shared else own + apart))
    return late


_SCALED = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
NO_HOSTS: Mapping[int, str] = MappingProxyType({})
_ONE_SIDED = {"broadcast", "reduce"}  # one rank may finish before the others have arrived
_BY_NUMBER = "collectives with the same sequence number are matched"
_BY_END = "collectives that end at the same time are matched"
_TRIED = 1 << 22  # limit on the pairs of calls that are compared to find the first common one


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective, matched over its ranks; times are on aligned clocks."""

    kind: str
    group: str
    number: int  # number within its kind and group, from 0
    ranks: int
    start_ns: int  # when the first rank arrived
    skew_ns: int
    transfer_ns: int
    last: int  # the rank that arrived last
    waited_ns: int  # total time that the others waited for it
    bus_bytes_per_s: float | None  # None: its size is unknown


@dataclass(frozen=True, kw_only=True)
class MatchedCollectives:
    """The matched collectives of several ranks, with clock offsets and waiting times."""

    collectives: Sequence[Collective]
    offsets_ns: Mapping[int, int]  # clock offset by rank
    waited_ns: Mapping[int, int]  # by rank: time in collectives until the last rank had arrived
    problems: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class CollectiveSequences:
    """The collectives of one kind and process group on several ranks, in order for each rank."""

    kind: str
    group: str
    ranks: Mapping[int, Sequence[CollectiveCall]]

    @property
    def named(self) -> str:
        """Return the kind and the group as text, for messages."""
        return f"{self.kind} of group {self.group}" if self.group else self.kind

    def side_by_side(self) -> MatchedSequences:
        """Match the collectives of the ranks: by number if all have numbers, else by order and end times."""
        common = self._numbers_of_all()
        if common:
            own = {rank: {one.number: one for one in some} for rank, some in self.ranks.items()}
            return MatchedSequences(
                {rank: [some[number] for number in common] for rank, some in own.items()}, _BY_NUMBER
            )
        shortest = min(self.ranks, key=lambda rank: len(self.ranks[rank]))
        return MatchedSequences(
            {rank: _aligned_by_end(own, self.ranks[shortest]) for rank, own in self.ranks.items()}, _BY_END
        )

    def _numbers_of_all(self) -> list[int]:
        """Return the sequence numbers that all ranks have; empty if one of them has missing or repeated numbers."""
        told = [{one.number for one in own if one.number is not None} for own in self.ranks.values()]
        if any(len(numbers) < len(own) for numbers, own in zip(told, self.ranks.values(), strict=True)):
            return []
        return sorted(set.intersection(*told))

    def uneven(self, how: str) -> list[str]:
        """Return a message if the ranks recorded different numbers of collectives; `how` is the method of matching."""
        counts = {len(own) for own in self.ranks.values()}
        return [
            f"{self.named}: the ranks recorded different numbers of these collectives (between {min(counts)} and "
            f"{max(counts)}); {how}"
        ] * (len(counts) > 1)


class MatchedSequences(NamedTuple):
    """The same collectives on each rank, in order, and text on how they were matched."""

    ranks: Mapping[int, Sequence[CollectiveCall]]
    how: str


def _aligned_by_end(own: Sequence[CollectiveCall], others: Sequence[CollectiveCall]) -> Sequence[CollectiveCall]:
    """Return as many consecutive collectives of `own` as `others` has: those that fit `others` best.

    The fit is best where the differences between the end times vary least.
    """
    more = len(own) - len(others)
    if not 0 < more * len(others) <= _TRIED:
        return own[: len(others)]
    ends, wanted = (np.array([one.end_ns for one in each], np.int64) for each in (own, others))

    def misfit(first: int) -> tuple[int, int]:
        apart = ends[first : first + len(wanted)] - wanted
        middle = int(np.median(apart))
        return round(float(np.median(np.abs(apart - middle))) / SHARED_NS), abs(middle)

    first = min(range(more + 1), key=misfit)
    return own[first : first + len(others)]


def match_collectives(
    calls: Mapping[int, Sequence[CollectiveCall]], hosts: Mapping[int, str] = NO_HOSTS
) -> MatchedCollectives:
    """Return the collectives of several ranks, matched across ranks.

    Args:
        calls: Collectives by rank, in any order.
        hosts: Host names of ranks, if known.
    """
    problems: list[str] = []
    groups = [same for same in _groups(calls) if _is_one(same, problems)]
    together = []
    for same in groups:
        ranks, how = same.side_by_side()
        if _end_together(same, ranks, hosts, problems):
            problems += same.uneven(how)
            together.append((same, ranks))
    ends = ({rank: [one.end_ns for one in own] for rank, own in ranks.items()} for _, ranks in together)
    offsets = clock_offsets(ends, hosts)
    found: list[Collective] = []
    waited: dict[int, int] = defaultdict(int)
    for same, ranks in together:
        for number in range(len(next(iter(ranks.values())))):
            starts = {rank: own[number].start_ns + offsets.get(rank, 0) for rank, own in ranks.items()}
            found.append(_collective(same.kind, same.group, number, ranks, starts, offsets))
            arrived = max(starts.values())
            for rank, start in starts.items():
                waited[rank] += arrived - start
    return MatchedCollectives(
        collectives=sorted(found, key=lambda one: one.start_ns),
        offsets_ns={rank: offset for rank, offset in offsets.items() if offset},
        waited_ns=dict(waited),
        problems=problems,
    )


def _groups(calls: Mapping[int, Sequence[CollectiveCall]]) -> list[CollectiveSequences]:
    """Return the collectives that two or more ranks ran, by kind and group."""
    by_key: dict[tuple[str, str, str], dict[int, list[CollectiveCall]]] = defaultdict(dict)
    for rank, own in calls.items():
        for call in sorted(own, key=lambda call: call.start_ns):
            if not call.between_two:
                by_key[call.kind, call.group, call.members].setdefault(rank, []).append(call)
    return [
        CollectiveSequences(kind=kind, group=group, ranks=ranks)
        for (kind, group, _), ranks in by_key.items()
        if len(ranks) > 1
    ]


def _is_one(same: CollectiveSequences, problems: list[str]) -> bool:
    """Return whether the collectives can belong to a single process group.

    If more ranks than the group has recorded them, several groups have this name; add a message to `problems`.
    """
    size = max((one.size for own in same.ranks.values() for one in own if one.size is not None), default=None)
    if size is None or len(same.ranks) <= size:
        return True
    problems.append(
        f"{same.named}: {len(same.ranks)} ranks recorded it, but its group has {size}: several process groups have "
        f"this name, so the collective is not matched across ranks"
    )
    return False


def _end_together(
    same: CollectiveSequences,
    ranks: Mapping[int, Sequence[CollectiveCall]],
    hosts: Mapping[int, str],
    problems: list[str],
) -> bool:
    """Return whether the matched collectives can be the same: whether most overlap in time on all ranks.

    If they do not, add a message to `problems`.
    """
    if same.kind in _ONE_SIDED:
        return True
    ends = {rank: [one.end_ns for one in own] for rank, own in ranks.items()}
    offsets = clock_offsets([ends], hosts)
    fit = 0
    for number in range(len(next(iter(ends.values())))):
        arrived = max(own[number].start_ns + offsets[rank] for rank, own in ranks.items())
        ended = min(own[number].end_ns + offsets[rank] for rank, own in ranks.items())
        fit += arrived <= ended + SHARED_NS
    if 2 * fit >= number + 1:
        return True
    problems.append(
        f"{same.named}: the collective does not run at the same time on its {len(ranks)} ranks, so it is "
        f"not matched across ranks"
    )
    return False


def _collective(
    kind: str,
    group: str,
    number: int,
    ranks: Mapping[int, Sequence[CollectiveCall]],
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


_WORTH = 0.1  # least share of all waiting for a straggler


@dataclass(frozen=True, kw_only=True)
class CollectiveStraggler:
    """A rank for which other ranks wait in collectives."""

    rank: int
    last_in: int  # collectives
    of: int
    caused_ns: int  # total waiting time of the others
    share: float  # caused time as a share of all waiting


def find_stragglers(collectives: Sequence[Collective], ranks: int) -> list[CollectiveStraggler]:
    """Return the stragglers, the worst first.

    Args:
        collectives: Matched collectives.
        ranks: Number of ranks that were compared.
    """
    waited = sum(one.waited_ns for one in collectives)
    if not waited or ranks < 2:
        return []
    found = []
    for rank in sorted({one.last for one in collectives}):
        own = [one for one in collectives if one.last == rank]
        caused = sum(one.waited_ns for one in own)
        if caused >= max(_WORTH, 1 / ranks) * waited:
            found.append(
                CollectiveStraggler(
                    rank=rank, last_in=len(own), of=len(collectives), caused_ns=caused, share=caused / waited
                )
            )
    return sorted(found, key=lambda one: -one.caused_ns)
