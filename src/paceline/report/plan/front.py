"""The plans that no other plan beats in both time and memory, and the reasons why other plans were rejected."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core import units
from paceline.plan.cost.plan import Plan
from paceline.plan.search.advice import Advice
from paceline.report.page.axis import axis
from paceline.report.page.chart import Frame, dots, line, meter, note, plot, upright
from paceline.report.page.markup import Markup, element, section, table
from paceline.report.plan.words import axes, batches, turns

_MOST_ROWS = 12


def front(advice: Advice) -> Markup | None:
    """Return the section with the plans that no other plan beats in both time and memory; None without plans."""
    plans = advice.found.plans
    if not plans:
        return None
    heads = [("Layout", ""), ("Batches", ""), ("Recomputed", "")]
    formats = [_other(plan) for plan in advice.formats]
    heads += [("Step", "num"), ("Memory", "num"), ("Fits", "num")]
    said = (
        "Step time against memory per GPU. All plans in the chart fit in memory, and each plan needs less memory "
        "than every faster plan. The chosen plan is the fastest."
    )
    more = len(plans) - _MOST_ROWS
    return section(
        "front",
        "Faster or smaller",
        element("p", said, class_="quiet"),
        _drawing(advice) if len(plans) > 1 else None,
        table(heads, (_row(plan) for plan in plans[:_MOST_ROWS]), class_="plans"),
        element("p", f"{more} slower plans are in the JSON result", class_="quiet") if more > 0 else None,
        *formats,
    )


def _drawing(advice: Advice) -> Markup:
    plans = advice.found.plans
    held, times = [plan.memory_bytes for plan in plans], [plan.step_s for plan in plans]
    limit = plans[0].case.cluster.memory_bytes
    frame = Frame(x=axis([*held, 1.04 * limit], "bytes"), y=axis([1.08 * max(times)], "s"))
    best = plans[0]
    return plot(
        frame,
        upright(frame, limit, "limit"),
        line(frame, held, times, "curve"),
        dots(frame, held[1:], times[1:], "curve"),
        dots(frame, held[:1], times[:1], "chosen"),
        label=f"Step time against memory of {len(plans)} plans; the chosen plan is the fastest",
        notes=[
            note(frame, "chosen", x=best.memory_bytes, y=best.step_s),
            note(frame, "limit", x=limit, class_="bad top"),
        ],
        ticks=(5, 4),
    )


def _other(plan: Plan) -> Markup:
    how = plan.case.training
    said = f"In {how.precision}, which rounds differently: {units.seconds(plan.step_s)} a step in "
    return element("p", said, f"{units.size(plan.memory_bytes)}, {axes(plan.case.layout)}.", class_="quiet")


def _row(plan: Plan) -> list[str | Markup]:
    how = plan.case.training
    batch = ", ".join(filter(None, (batches(plan), turns(plan))))
    layout = element("code", str(plan.case.layout))
    return [
        layout,
        batch,
        how.recompute,
        units.seconds(plan.step_s),
        units.size(plan.memory_bytes),
        f"{plan.fits:.2f}",
    ]


def rejected(advice: Advice) -> Markup | None:
    """Return the table with the number of rejected configurations for each reason; None if none was rejected."""
    return why_not(advice.found.rejected, advice.found.looked_at, "Why other layouts were rejected")


def why_not(counts: Mapping[str, int], most: int, title: str) -> Markup | None:
    """Return a table that shows how often each reason occurred; None without reasons.

    Args:
        counts: The count of each reason.
        most: The count for which the bar in a row has its full length.
        title: The heading.
    """
    if not counts:
        return None
    whole = max(most, *counts.values())
    rows = (
        [why, f"{count:,}", meter(count / whole)] for why, count in sorted(counts.items(), key=lambda pair: -pair[1])
    )
    return section("rejected", title, table((("Reason", ""), ("Count", "num"), ("", "bar")), rows, class_="parts"))
