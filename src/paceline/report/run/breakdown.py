"""The phases of a step: their shares and times, and the functions and operators sampled in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.core import units
from paceline.explain.model import Diagnosis, HotFunction, RankBreakdown, SourceLines
from paceline.record.layout import PHASES
from paceline.report import words
from paceline.report.page.chart import meter, swatch
from paceline.report.page.markup import Markup, element, join, section, table
from paceline.report.page.source import in_table
from paceline.report.phases import STYLES, shown

MAX_FUNCTIONS = 10
MIN_SHARE = 0.01
MIN_SAMPLES = 5  # least total number of samples; fewer are not representative


def breakdown(diagnosis: Diagnosis) -> Markup | None:
    """Return the section with shares and seconds of the nine phases and their functions; None without phases."""
    if not shown(diagnosis.shares, 0.0):
        return None
    own = diagnosis.ranks[0].host_functions if diagnosis.ranks else ()
    return section(
        "phases",
        "Where the time goes",
        _counted(diagnosis),
        _table(diagnosis),
        functions("Your own code between the phases of a step", own, sources=diagnosis.sources),
        functions("Operators in the profiled steps", diagnosis.top_operators, "Calls"),
    )


def _counted(diagnosis: Diagnosis) -> Markup:
    of_ranks = f", median of {words.count(diagnosis.world, 'rank')}" if diagnosis.world > 1 else ""
    steady = diagnosis.step_s.count if diagnosis.step_s else 0
    return element("p", f"Wall time of {words.count(steady, 'steady step')}{of_ranks}.", class_="quiet")


def _table(diagnosis: Diagnosis) -> Markup:
    heads = [("Phase", ""), ("", "bar"), ("Share", "num"), ("Time", "num")]
    if len(diagnosis.ranks) > 1:
        heads.append(("Range over ranks", "num"))
    rows = [_row(name, diagnosis) for name in PHASES if diagnosis.shares.get(name, 0.0) > 0]
    return table(heads, rows, class_="phases")


def _row(name: str, diagnosis: Diagnosis) -> list[str | Markup]:
    style, share = STYLES[name], diagnosis.shares[name]
    title = join((swatch(name), element("span", style.label), element("small", style.meaning)))
    cells = [title, meter(share, name), units.percent(share), units.seconds(diagnosis.seconds.get(name))]
    return cells if len(diagnosis.ranks) < 2 else [*cells, _over_ranks(name, diagnosis.ranks)]


def _over_ranks(name: str, ranks: Sequence[RankBreakdown]) -> str:
    shares = [rank.shares.get(name, 0.0) for rank in ranks]
    return words.span(min(shares), max(shares), "share")


def functions(
    title: str,
    found: Sequence[HotFunction],
    counted: str = "Samples",
    sources: Mapping[str, SourceLines] | None = None,
) -> Markup | None:
    """Return a table of functions with their shares and counts; None if there is nothing to show.

    Args:
        title: The title of the first column.
        found: The functions. Those with a share below 1%, or with a single sample, are left out.
        counted: The title of the column with counts.
        sources: The source lines of functions.
    """
    sampled = counted == "Samples"
    shown = [one for one in found if one.share >= MIN_SHARE and (one.count > 1 or not sampled)]
    if not shown or (sampled and sum(one.count for one in found) < MIN_SAMPLES):
        return None
    rows = (
        [in_table(one.function, sources or {}), meter(one.share), units.percent(one.share), f"{one.count:,}"]
        for one in shown[:MAX_FUNCTIONS]
    )
    heads = ((title, ""), ("", "bar"), ("Share", "num"), (counted, "num"))
    return table(heads, rows, class_="functions")
