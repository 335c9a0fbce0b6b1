"""The comparison of two captures: time by class and by kernel.

Two captures rarely contain the same number of steps. If both have marked steps, times are divided by the number of
steps. Otherwise whole captures are compared, and the result says so. A kernel that was split or fused appears as a
removed kernel and added kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.traces.analyze.ranks import RankTrace


@dataclass(frozen=True, kw_only=True)
class MeanTime:
    """The mean count and time of a kernel in one of the captures, per rank, and per step if steps are marked."""

    count: float
    total_ns: float


@dataclass(frozen=True, kw_only=True)
class KernelChange:
    """The count and time of a kernel in both captures; the count is 0 in a capture without this kernel."""

    name: str
    class_: int
    before: MeanTime
    after: MeanTime

    @property
    def change_ns(self) -> float:
        """Return by how many nanoseconds the time of the kernel is longer in the second capture than in the first."""
        return self.after.total_ns - self.before.total_ns


@dataclass(frozen=True, kw_only=True)
class CaptureComparison:
    """The comparison of two captures (or sets of captures of several ranks), as means over ranks."""

    per_step: bool
    parts: Sequence[tuple[str, float, float]]  # name, nanoseconds before and after; the first is the span
    kernels: Sequence[KernelChange]  # by descending change


_PARTS: tuple[tuple[str, Callable[[RankTrace], int]], ...] = (
    ("span", lambda rank: rank.breakdown.span_ns),
    ("idle", lambda rank: rank.breakdown.idle_ns),
    ("compute", lambda rank: rank.breakdown.compute_ns),
    ("exposed communication", lambda rank: rank.breakdown.exposed_communication_ns),
    ("exposed copies", lambda rank: rank.breakdown.exposed_copy_ns),
    ("idle: fetching batches", lambda rank: rank.idle.loader_ns),
    ("idle: host calls that wait for the GPU", lambda rank: rank.idle.synchronising_ns),
    ("idle: host launching work", lambda rank: rank.idle.host_ns),
    ("idle: work launched but not started", lambda rank: rank.idle.device_ns),
)


def compare_captures(before: Sequence[RankTrace], after: Sequence[RankTrace]) -> CaptureComparison:
    """Compare the ranks of one capture with those of another capture."""
    per_step = all(rank.steps for rank in [*before, *after])
    shares = [_share(rank, per_step) for rank in before], [_share(rank, per_step) for rank in after]
    parts = [(name, _mean(map(of, before), shares[0]), _mean(map(of, after), shares[1])) for name, of in _PARTS]
    sides = _by_name(before, shares[0]), _by_name(after, shares[1])
    classes = {kernel.name: kernel.class_ for rank in [*before, *after] for kernel in rank.kernels}
    none = MeanTime(count=0.0, total_ns=0.0)
    changes = [
        KernelChange(name=name, class_=class_, before=sides[0].get(name, none), after=sides[1].get(name, none))
        for name, class_ in classes.items()
    ]
    return CaptureComparison(
        per_step=per_step,
        parts=parts,
        kernels=sorted(changes, key=lambda one: (-abs(one.change_ns), one.name)),
    )


def _share(rank: RankTrace, per_step: bool) -> float:
    return 1.0 / rank.steps if per_step else 1.0


def _mean(values: Iterable[float], shares: Sequence[float]) -> float:
    scaled = [value * share for value, share in zip(values, shares, strict=True)]
    return sum(scaled) / len(scaled) if scaled else 0.0


def _by_name(ranks: Sequence[RankTrace], shares: Sequence[float]) -> dict[str, MeanTime]:
    counts: dict[str, float] = defaultdict(float)
    totals: dict[str, float] = defaultdict(float)
    for rank, share in zip(ranks, shares, strict=True):
        for kernel in rank.kernels:
            counts[kernel.name] += share * kernel.count / len(ranks)
            totals[kernel.name] += share * kernel.total_ns / len(ranks)
    return {name: MeanTime(count=counts[name], total_ns=totals[name]) for name in counts}
