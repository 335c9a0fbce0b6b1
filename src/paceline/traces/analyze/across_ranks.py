"""Totals over all ranks (kernels, operators, modules, lines), and the ranks whose shares of time are most unusual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from paceline.traces.analyze.gpu_time import Kernel
from paceline.traces.analyze.launchers import UNKNOWN, Launcher
from paceline.traces.analyze.ranks import RankTrace

# Plural of each kind of launcher.
LAUNCHER_KINDS: Mapping[str, str] = {"operator": "Operators", "module": "Modules", "line": "Lines"}


def kernels_over(ranks: Iterable[RankTrace]) -> list[Kernel]:
    """Return the kernels of all ranks, summed by name, by descending total time."""
    own: dict[str, list[Kernel]] = defaultdict(list)
    for rank in ranks:
        for kernel in rank.kernels:
            own[kernel.name].append(kernel)
    added = [
        Kernel(
            name=name,
            class_=same[0].class_,
            count=sum(one.count for one in same),
            total_ns=sum(one.total_ns for one in same),
            max_ns=max(one.max_ns for one in same),
        )
        for name, same in own.items()
    ]
    return sorted(added, key=lambda kernel: (-kernel.total_ns, kernel.name))


def launchers_over(ranks: Iterable[RankTrace]) -> dict[str, list[Launcher]]:
    """Return the operators, modules and source lines that launched GPU work, summed by name over all ranks.

    A kind is left out if none of its names are known.
    """
    known = [rank.launchers for rank in ranks if rank.launchers is not None]
    if not all(one.on_cpu for one in known):
        known = [one for one in known if not one.on_cpu]
    found = {
        "operator": _added(one for each in known for one in each.operators),
        "module": _added(one for each in known for one in each.modules),
        "line": _added(one for each in known for one in each.lines),
    }
    return {kind: some for kind, some in found.items() if any(one.name != UNKNOWN for one in some)}


def is_on_cpu(ranks: Iterable[RankTrace]) -> bool:
    """Return whether the times of operators, modules and lines are CPU time, because no capture has GPU work."""
    known = [rank.launchers for rank in ranks if rank.launchers is not None]
    return bool(known) and all(one.on_cpu for one in known)


def share_of(total_ns: int, among: Sequence[Kernel] | Sequence[Launcher]) -> float:
    """Return `total_ns` as a share of the total of these kernels or launchers; 0 if their total is 0."""
    return total_ns / (sum(one.total_ns for one in among) or 1)


def _added(found: Iterable[Launcher]) -> list[Launcher]:
    launches: dict[str, int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for one in found:
        launches[one.name] += one.launches
        totals[one.name] += one.total_ns
    added = [Launcher(name=name, launches=launches[name], total_ns=totals[name]) for name in totals]
    return sorted(added, key=lambda one: (-one.total_ns, one.name))


PARTS = ("compute", "communication", "copy", "idle")  # parts of a span; only exposed communication and copies count


def shares_of(rank: RankTrace) -> dict[str, float]:
    """Return the shares of the parts in `PARTS` of the time between a rank's first and last GPU event.

    The shares sum to 1; all are 0 if this time is 0.
    """
    own = rank.breakdown
    parts = (own.compute_ns, own.exposed_communication_ns, own.exposed_copy_ns, own.idle_ns)
    return {name: ns / own.span_ns if own.span_ns else 0.0 for name, ns in zip(PARTS, parts, strict=True)}


def most_unusual(ranks: Sequence[RankTrace], most: int) -> list[RankTrace]:
    """Return up to `most` ranks whose shares of time differ most from the median, in their original order."""
    if len(ranks) <= most:
        return list(ranks)
    each = [shares_of(rank) for rank in ranks]
    usual = {name: median(shares[name] for shares in each) for name in PARTS}
    apart = [sum(abs(shares[name] - usual[name]) for name in PARTS) for shares in each]
    furthest = sorted(range(len(ranks)), key=lambda place: -apart[place])[:most]
    return [ranks[place] for place in sorted(furthest)]
