"""Lines for the terminal on critical paths: the parts of each path, and how much a change would shorten it."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.report.words import count
from paceline.traces.analyze.across_ranks import most_unusual
from paceline.traces.analyze.path_summary import PathSummary
from paceline.traces.analyze.ranks import RankTrace

NAMES = {
    "compute": "compute", "communication": "communication", "copy": "copies", "host": "host work",
    "loader": "fetching batches", "launch": "launch latency", "gap": "gaps between GPU work",
    "return": "return from waiting calls", "unknown": "unknown",
}  # fmt: skip
_MOST_RANKS, _MOST_KERNELS = 4, 5
_NAME_WIDTH, _NAME_END = 60, 16
_SHOWN = 0.005  # least share of the path


def path_lines(ranks: Sequence[RankTrace]) -> list[str]:
    """Return the lines on the critical path of each rank: its parts, its kernels, and predicted effects of changes."""
    known = [rank for rank in ranks if rank.path is not None]
    lines = [line for rank in most_unusual(known, _MOST_RANKS) for line in _of_rank(rank, rank.path)]
    left = len(known) - _MOST_RANKS
    return [*lines, f"the critical paths of {left:,} more ranks are in the JSON result"] if left > 0 else lines


def _of_rank(rank: RankTrace, path: PathSummary | None) -> list[str]:
    if path is None:
        return []
    kernels = [f"  kernel on the path: {_share(ns, path)}: {_cut(name)}" for name, ns in _largest(path)]
    changes = [f"  if {_cut(one.what)}: {_outcome(one.before_ns, one.after_ns)}" for one in path.what_if]
    return [f"critical path of {rank.title}: {_parts(path)}", *kernels, *changes]


def _parts(path: PathSummary) -> str:
    parts = sorted(path.kinds_ns.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{NAMES[kind]} {_share(ns, path)}" for kind, ns in parts if ns >= _SHOWN * path.length_ns)
    steps = f", {count(len(path.steps), 'marked step')}" if path.steps else ""
    return f"{shown} of {units.seconds(path.length_ns / 1e9)}{steps}"


def _largest(path: PathSummary) -> list[tuple[str, int]]:
    shown = [(name, ns) for name, ns in path.kernels_ns.items() if ns >= _SHOWN * path.length_ns]
    return shown[:_MOST_KERNELS]


def _share(ns: int, path: PathSummary) -> str:
    return units.percent(ns / path.length_ns) if path.length_ns else "n/a"


def _outcome(before_ns: int, after_ns: int) -> str:
    if not after_ns:
        return "no time would be left"
    times = f"{units.factor(before_ns / after_ns)} faster"
    return f"{times}, {units.seconds(before_ns / 1e9)} -> {units.seconds(after_ns / 1e9)}"


def _cut(name: str) -> str:
    """Return a name with its middle removed if it is long."""
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1 - _NAME_END]}…{name[-_NAME_END:]}"
