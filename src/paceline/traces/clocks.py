"""By how much do the clocks of ranks differ? Collectives end everywhere at the same time, whatever a clock says.

Ranks that share collectives are linked by the median difference of their ends; from link to link, those of most
collectives first, every rank that is linked with another one gets its difference, also where no collective has both:
on two hosts, groups that lie within a host say nothing of the other host's clock, and those across do. What is left
where it is, is the clock of the rank in the middle. Ranks of one host have one clock, and what their ends differ by is
something else: unless it is so much that only the names of the hosts can be the same.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_low

SHARED_NS = 50_000  # ends that are closer show one clock; moving it would only add their noise
_OF_ONE_HOST_NS = 20_000_000


def offsets_of(ends_ns: Iterable[Mapping[int, Sequence[int]]], hosts: Mapping[int, str]) -> dict[int, int]:
    """Return by how much the clock of each rank is to be moved; 0 where it fits as it is.

    Args:
        ends_ns: Of each group and kind, by rank, when its collectives ended: the same ones in the same order.
        hosts: Of ranks, where they are told.
    """
    links = _links(ends_ns)
    moved: dict[int, int] = {}
    for rank in sorted(links):
        if rank not in moved:
            late = _walked(links, rank, hosts)
            middle = median_low(late.values())
            moved |= {one: _apart(middle - own) for one, own in late.items()}
    return moved


def _apart(ns: int) -> int:
    return ns if abs(ns) > SHARED_NS else 0


def _links(ends_ns: Iterable[Mapping[int, Sequence[int]]]) -> dict[int, dict[int, list[int]]]:
    """Return for pairs of ranks how much later the second one's collectives ended, each."""
    links: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for group in ends_ns:
        first = min(group)
        for rank in group.keys() - {first}:
            later = [own - other for own, other in zip(group[rank], group[first], strict=True)]
            links[first][rank] += later
            links[rank][first] += [-each for each in later]
    return links


def _walked(links: Mapping[int, Mapping[int, Sequence[int]]], root: int, hosts: Mapping[int, str]) -> dict[int, int]:
    """Return how late the clocks are of all that is linked with a rank, along the links of most collectives."""
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
