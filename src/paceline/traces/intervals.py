"""Exact arithmetic of unions of intervals, in integer nanoseconds.

With |A| the length of the union of A,

    overlap(A, B) = |A| + |B| - |A + B|,      |A without B| = |A + B| - |B|

so every result follows from unions. Nothing is rounded. Profilers sometimes write intervals that end before
they begin; these count as empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ns = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Union:
    """Disjoint intervals in order, each with a positive length, separated by gaps."""

    starts_ns: Ns
    ends_ns: Ns

    @property
    def length_ns(self) -> int:
        """Return the total length in nanoseconds."""
        return int((self.ends_ns - self.starts_ns).sum())

    @property
    def gaps(self) -> Union:
        """Return the gaps between the intervals."""
        return Union(starts_ns=self.ends_ns[:-1], ends_ns=self.starts_ns[1:])


EMPTY = Union(starts_ns=np.empty(0, np.int64), ends_ns=np.empty(0, np.int64))


def union_of(starts_ns: Ns, ends_ns: Ns) -> Union:
    """Return the union of intervals [start, end), given in any order."""
    real = ends_ns > starts_ns
    if not real.all():
        starts_ns, ends_ns = starts_ns[real], ends_ns[real]
    if not len(starts_ns):
        return EMPTY
    if (starts_ns[1:] < starts_ns[:-1]).any():
        order = np.argsort(starts_ns, kind="stable")
        starts_ns, ends_ns = starts_ns[order], ends_ns[order]
    reached = np.maximum.accumulate(ends_ns)
    apart = np.flatnonzero(starts_ns[1:] > reached[:-1])  # indices of the last intervals before a gap
    return Union(
        starts_ns=np.concatenate((starts_ns[:1], starts_ns[apart + 1])),
        ends_ns=np.concatenate((reached[apart], reached[-1:])),
    )


def union_of_unions(*unions: Union) -> Union:
    """Return the union of several unions."""
    return union_of(
        np.concatenate([one.starts_ns for one in unions]) if unions else EMPTY.starts_ns,
        np.concatenate([one.ends_ns for one in unions]) if unions else EMPTY.ends_ns,
    )


def intersection(first: Union, second: Union) -> Union:
    """Return the intersection of two unions."""
    starts = np.concatenate([first.starts_ns, second.starts_ns])
    ends = np.concatenate([first.ends_ns, second.ends_ns])
    times = np.concatenate([starts, ends])
    change = np.concatenate([np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)])
    order = np.lexsort((change, times))  # at the same time ends come first: touching intervals do not intersect
    depth = np.cumsum(change[order])
    both = np.flatnonzero(depth == 2)
    return union_of(times[order][both], times[order][both + 1]) if len(both) else EMPTY


def difference(first: Union, second: Union) -> Union:
    """Return the part of the first union that is outside the second."""
    if not len(first.starts_ns) or not len(second.starts_ns):
        return first
    low = min(int(first.starts_ns[0]), int(second.starts_ns[0]))
    high = max(int(first.ends_ns[-1]), int(second.ends_ns[-1]))
    outside = Union(
        starts_ns=np.append(low, second.ends_ns),
        ends_ns=np.append(second.starts_ns, high),
    )
    return intersection(first, union_of(outside.starts_ns, outside.ends_ns))


def length_before(union: Union, times_ns: Ns) -> Ns:
    """For each of the given times, return the length of the part of a union before this time, in nanoseconds."""
    lengths = np.append(0, np.cumsum(union.ends_ns - union.starts_ns))
    place = np.searchsorted(union.starts_ns, times_ns, side="right")
    beyond = np.append(0, union.ends_ns)[place] - times_ns
    return np.where(place > 0, lengths[place] - np.maximum(beyond, 0), 0)
