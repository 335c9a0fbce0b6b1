"""What does a person read of who launched the work of GPUs? Operators, modules and lines, over all captures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from paceline import units
from paceline.report.words import count
from paceline.traces.operators import UNKNOWN, Launcher, Launchers
from paceline.traces.summary import RankTrace

_MOST = 8
_KINDS: tuple[tuple[str, Callable[[Launchers], Sequence[Launcher]]], ...] = (
    ("operator", lambda found: found.operators),
    ("module", lambda found: found.modules),
    ("line", lambda found: found.lines),
)


def launcher_lines(ranks: Sequence[RankTrace]) -> list[str]:
    """Say which operators, modules and lines launched most of the GPU's time; of each kind what is known."""
    known = [rank.launchers for rank in ranks if rank.launchers is not None]
    everything = sum(found.total_ns for found in known)
    lines = []
    for kind, of in _KINDS:
        launches: dict[str, int] = defaultdict(int)
        totals: dict[str, int] = defaultdict(int)
        for found in known:
            for one in of(found):
                launches[one.name] += one.launches
                totals[one.name] += one.total_ns
        if set(totals) <= {UNKNOWN}:
            continue
        for name in sorted(totals, key=lambda name: -totals[name])[:_MOST]:
            share, time = units.percent(totals[name] / everything), units.seconds(totals[name] / 1e9)
            lines.append(f"{kind}: {share} of GPU time, {time}, {count(launches[name], 'launch')}: {name}")
    return lines
