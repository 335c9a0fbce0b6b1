"""The sections of the comparison page on what changed between two runs: phases, findings, settings."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.explain.comparison import Comparison, PhaseChange
from paceline.explain.model import Finding
from paceline.report.compare.rows import reasons, signed_interval
from paceline.report.page.chart import meter, swatch
from paceline.report.page.markup import Markup, element, join, section, sentence, table
from paceline.report.phases import STYLES
from paceline.report.words import headline

_LEAST_SHARE = 0.01  # of a step; phases that take less in both runs are left out


def phases(comparison: Comparison) -> Markup | None:
    """Return the section with the time of each phase in both runs, largest change first; None without step times."""
    before, after = comparison.time_before_s, comparison.time_after_s
    if before is None or after is None:
        return None
    least = _LEAST_SHARE * min(before.value, after.value)
    shown = [one for one in comparison.phases if max(one.before_s, one.after_s) >= least]
    longest = max((max(one.before_s, one.after_s) for one in shown), default=1.0) or 1.0
    heads = (
        ("Phase", ""),
        ("Before and after", "bar"),
        ("Before", "num"),
        ("After", "num"),
        ("Change, 95% CI", "num long"),
    )
    said = (
        f"Mean time of each phase in a {comparison.basis}: the pale bar is the run BEFORE, and the full bar is "
        f"the run AFTER."
    )
    return section(
        "phases",
        "Where the change is",
        element("p", said, class_="quiet"),
        table(heads, (_phase(one, longest) for one in shown), class_="pairs"),
    )


def _phase(one: PhaseChange, longest: float) -> list[str | Markup]:
    title = join((swatch(one.phase), element("span", STYLES[one.phase].label)))
    bars = element(
        "div",
        element("div", meter(one.before_s / longest, one.phase), class_="pale"),
        meter(one.after_s / longest, one.phase),
        class_="pair",
    )
    change = signed_interval(one.change_s)
    told = element("b", change) if one.certain else element("span", f"{change}, within noise", class_="quiet")
    return [title, bars, units.seconds(one.before_s), units.seconds(one.after_s), told]


def findings(comparison: Comparison) -> Markup | None:
    """Return the section with notes and with the findings that only one of the two runs has; None without any."""
    notes = [text for label, text in reasons(comparison) if label == "note"]
    groups = (
        *_group("Found only after", comparison.new),
        *_group("Found only before", comparison.gone),
        *((element("h3", "Notes"), _points([sentence(headline(text)) for text in notes])) if notes else ()),
    )
    return section("findings", "What else changed", *groups) if groups else None


def _group(title: str, found: Sequence[Finding]) -> tuple[Markup, ...]:
    return (element("h3", title), _points([_finding(one) for one in found])) if found else ()


def _finding(one: Finding) -> Markup:
    name = join((element("code", one.code), " ", element("b", one.name)))
    return join(
        (name, ": ", sentence(headline(one.summary)), ". More: ", element("code", f"paceline explain {one.code}"))
    )


def _points(items: list[Markup]) -> Markup:
    return element("ul", *(element("li", item) for item in items), class_="evidence")


def settings(comparison: Comparison) -> Markup | None:
    """Return the section with the settings that differ between the two runs; None if all are equal."""
    if not comparison.differences:
        return None
    rows = ([one.name, element("code", one.before), element("code", one.after)] for one in comparison.differences)
    heads = (("Setting", ""), ("Before", ""), ("After", ""))
    return section("settings", "Settings that differ", table(heads, rows, class_="settings-table"))
