"""Bars that compare the steps of several runs; the length of a bar is the step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core import units
from paceline.report.page.chart import phase_bar, swatch
from paceline.report.page.markup import Markup, element
from paceline.report.phases import STYLES

_READABLE = 0.45  # share of the width; a shorter bar has no space for numbers
_LEAST_SHARE = 0.02


@dataclass(frozen=True, kw_only=True)
class Paced:
    """One bar: the name of a run, the time of one step (or of one sample), and the shares of the phases."""

    name: str
    time_s: float | None
    shares: Mapping[str, float]


def paced(runs: Sequence[Paced], unit: str = "step") -> Markup | None:
    """Return one bar for each run, with a legend of the phases; None if the first run has no shares."""
    if not any(share > 0 for share in runs[0].shares.values()):
        return None
    longest = max(run.time_s or 0.0 for run in runs) or 1.0
    bars = [part for run in runs for part in _bar(run, (run.time_s or longest) / longest, unit)]
    return element("div", element("div", *bars, class_="paced"), _key(runs), class_="hero")


def _bar(run: Paced, length: float, unit: str) -> tuple[Markup, ...]:
    drawn = phase_bar(run.shares, named=length >= _READABLE, length=length)
    return (
        element("span", run.name),
        element("div", element("div", drawn, style=f"width:{max(0.5, 100 * length):.2f}%"), class_="track"),
        element("span", element("b", units.seconds(run.time_s)), f" a {unit}"),
    )


def _key(runs: Sequence[Paced]) -> Markup:
    names = [name for name in STYLES if any(run.shares.get(name, 0.0) > _LEAST_SHARE for run in runs)]
    entries = (
        (name, f"{STYLES[name].label} {' → '.join(units.percent(run.shares.get(name, 0.0)) for run in runs)}")
        for name in names
    )
    return element("ul", *(element("li", swatch(name), text) for name, text in entries), class_="legend")
