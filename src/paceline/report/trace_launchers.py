"""What does a person read of who launched the work of GPUs? Operators, modules and lines, over all captures."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.report.words import count
from paceline.traces.analyze.across_ranks import is_on_cpu, launchers_over, share_of
from paceline.traces.analyze.ranks import RankTrace

_MOST = 8


def launcher_lines(ranks: Sequence[RankTrace]) -> list[str]:
    """Say which operators, modules and lines launched most of the GPU's time, or took the CPU's; where it is known."""
    lines = []
    of, each = ("of CPU time in operators", "call") if is_on_cpu(ranks) else ("of GPU time", "launch")
    for kind, found in launchers_over(ranks).items():
        for one in found[:_MOST]:
            share, time = units.percent(share_of(one.total_ns, found)), units.seconds(one.total_ns / 1e9)
            lines.append(f"{kind}: {share} {of}, {time}, {count(one.launches, each)}: {one.name}")
    return lines
