"""The section on ranks: the use of each GPU, the causes of idle time, and stragglers."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core import units
from paceline.report import words
from paceline.report.page.chart import legend, stacked
from paceline.report.page.markup import Markup, element, section, table
from paceline.report.trace.words import main_cause
from paceline.traces.analyze.across_ranks import most_unusual, shares_of
from paceline.traces.analyze.ranks import RankTrace, Traces

MAX_ROWS = 24
# Parts of a span with the class of their colour; they sum to the span.
NAMES: Mapping[str, tuple[str, str]] = {
    "compute": ("forward", "compute"),
    "communication": ("communication", "not overlapped communication"),
    "copy": ("transfer", "not overlapped copies"),
    "idle": ("idle", "idle"),
}


def part_bar(parts: Mapping[str, float], *, named: bool = False) -> Markup:
    """Return the parts of a rank's analyzed time as one bar; `parts` are shares by the keys of `NAMES`."""
    shown = [(class_, title, parts[name]) for name, (class_, title) in NAMES.items() if parts[name] > 0]
    label = ", ".join(f"{title} {units.percent(share)}" for _, title, share in shown)
    return stacked(shown, f"Shares of the span: {label}", named=named)


def ranks(traces: Traces) -> Markup:
    """Return the table of ranks; with many ranks, only those that differ most from the median."""
    chosen = most_unusual(traces.ranks, MAX_ROWS)
    left = len(traces.ranks) - len(chosen)
    text = None
    if left:
        text = (
            f"The table shows the {len(chosen)} of {len(traces.ranks):,} ranks that differ most from the median rank."
        )
    heads = (
        ("Rank", ""),
        ("Share of the span", "bar"),
        ("Span", "num"),
        ("Idle", "num"),
        ("GPU events", "num"),
        ("Waits for others", "num"),
        ("Idle because of", ""),
    )
    return section(
        "ranks",
        "Ranks",
        element("p", text, class_="quiet") if text else None,
        legend(list(NAMES.values())) if any(rank.breakdown.span_ns for rank in chosen) else None,
        table(heads, (_row(rank, traces.matched.waited_ns) for rank in chosen), class_="ranks"),
        *(element("p", line) for line in _waited_for(traces)),
    )


def _row(rank: RankTrace, waited_ns: Mapping[int, int]) -> list[str | Markup]:
    own = rank.breakdown
    waited = waited_ns.get(rank.rank) if rank.rank is not None else None
    waits = units.seconds(waited / 1e9) if waited is not None else units.MISSING
    if not own.span_ns:
        return [rank.title, *[units.MISSING] * 3, f"{own.events:,}", waits, ""]
    share = units.percent(own.idle_ns / own.span_ns)
    return [
        rank.title,
        part_bar(shares_of(rank)),
        units.seconds(own.span_ns / 1e9),
        share,
        f"{own.events:,}",
        waits,
        main_cause(rank.idle),
    ]


def _waited_for(traces: Traces) -> list[str]:
    found = []
    for one in traces.stragglers:
        caused = f"{units.seconds(one.caused_ns / 1e9)}, {units.percent(one.share)} of all waiting"
        last = f"Rank {one.rank} arrives last in {one.last_in} of {words.count(one.of, 'collective')}"
        found.append(f"{last}; the other ranks wait {caused} for this rank.")
    return found
