"""The section on ranks; with many ranks, those that differ most from the median."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from paceline.core import units
from paceline.explain.model import Diagnosis, RankBreakdown
from paceline.record.layout import PHASES
from paceline.report import words
from paceline.report.page.chart import legend, phase_bar
from paceline.report.page.markup import Markup, element, section, table
from paceline.report.phases import STYLES

MAX_ROWS = 24


def ranks(diagnosis: Diagnosis) -> Markup | None:
    """Return the table of ranks, at most `MAX_ROWS`; None for a single rank."""
    if len(diagnosis.ranks) < 2:
        return None
    named = {rank for finding in diagnosis.findings[:1] for rank in finding.ranks}
    chosen = unusual(diagnosis.ranks, MAX_ROWS, named)
    used = [name for name in PHASES if any(rank.shares.get(name, 0.0) >= 0.005 for rank in chosen)]
    return section(
        "ranks",
        "Ranks",
        element("p", _explained(diagnosis.ranks, chosen), class_="quiet"),
        legend([(name, STYLES[name].label) for name in used]),
        _table(chosen),
    )


def unusual(ranks: Sequence[RankBreakdown], most: int, named: set[int]) -> list[RankBreakdown]:
    """Return the ranks to show, ordered by number.

    Args:
        ranks: All ranks.
        most: The largest number of ranks to return.
        named: Ranks that are always included; the others are those whose shares differ most from the median.
    """
    if len(ranks) <= most:
        return sorted(ranks, key=lambda rank: rank.rank)
    usual = {name: median(rank.shares.get(name, 0.0) for rank in ranks) for name in PHASES}

    def distance(rank: RankBreakdown) -> tuple[bool, float]:
        apart = sum(abs(rank.shares.get(name, 0.0) - usual[name]) for name in PHASES)
        return rank.rank in named, apart

    return sorted(sorted(ranks, key=distance, reverse=True)[:most], key=lambda rank: rank.rank)


def _explained(everyone: Sequence[RankBreakdown], chosen: Sequence[RankBreakdown]) -> str:
    spread = words.rank_spread(everyone)
    text = (
        f"The ranks differ most in: {spread}."
        if spread
        else "No phase differs between ranks by 5% of step time or more."
    )
    if len(chosen) == len(everyone):
        return text
    return f"{text} The table shows the {len(chosen)} of {len(everyone):,} ranks that differ most from the median rank."


def _table(chosen: Sequence[RankBreakdown]) -> Markup:
    heads = [("Rank", "num"), ("Share of step time", "bar"), ("Step", "num"), ("p95", "num"), ("Memory", "num")]
    hosts = len({rank.host for rank in chosen}) > 1
    if hosts:
        heads.append(("Host", ""))
    return table(heads, (_row(rank, hosts) for rank in chosen), class_="ranks")


def _row(rank: RankBreakdown, hosts: bool) -> list[str | Markup]:
    memory = rank.peak_device_bytes if rank.peak_device_bytes is not None else rank.peak_rss_bytes
    times = (units.seconds(rank.step_s.value), units.seconds(rank.p95_s))
    cells = [str(rank.rank), phase_bar(rank.shares), *times, units.size(memory)]
    return [*cells, rank.host] if hosts else cells
