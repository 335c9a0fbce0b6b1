"""Charts: marks as SVG on a grid of 2,000 by 1,000, with labels as HTML around it.

The SVG is stretched to the available width and contains no text, so labels stay readable on any screen. With
JavaScript a chart shows the values under the pointer (from its ``data-hover``) and zooms; without JavaScript it
is static.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core import units
from paceline.report.page.axis import Axis
from paceline.report.page.markup import Markup, element, join
from paceline.report.phases import shown

WIDTH, HEIGHT = 2000, 1000
X_NAMES = {"steps": "step", "s": "time"}
Values = Sequence[float | None]
_LEAST_NAMED = 0.06  # share of the width; smaller parts have no space for a number


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Two axes, which convert values to coordinates of the drawing."""

    x: Axis
    y: Axis

    def at_x(self, value: float) -> int:
        """Return the horizontal coordinate of a value, from 0 to `WIDTH`."""
        return round(self.x.fraction(value) * WIDTH)

    def at_y(self, value: float) -> int:
        """Return the vertical coordinate of a value, from 0 (top) to `HEIGHT`."""
        return round((1.0 - self.y.fraction(value)) * HEIGHT)


@dataclass(frozen=True, kw_only=True)
class Series:
    """The values shown under the pointer: one for each point on the x axis."""

    name: str
    unit: str
    values: Values


def line(frame: Frame, xs: Sequence[float], ys: Values, class_: str) -> Markup:
    """Return a line through the points, broken where a value is missing or not finite."""
    parts, command = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if y is None or not math.isfinite(y):
            command = "M"
            continue
        parts.append(f"{command}{frame.at_x(x)} {frame.at_y(y)}")
        command = "L"
    return element("path", d="".join(parts) or "M0 0", class_=f"stroke {class_}")


def columns(frame: Frame, edges: Sequence[float], tops: Sequence[float], class_: str) -> Markup:
    """Return filled columns from the bottom up to the heights `tops`; `edges` has one value more than `tops`."""
    xs = [frame.at_x(edge) for edge in edges]
    steps = (f"V{frame.at_y(top)}H{right}" for top, right in zip(tops, xs[1:], strict=True))
    return element("path", d=f"M{xs[0]} {HEIGHT}{''.join(steps)}V{HEIGHT}z", class_=class_)


def whiskers(frame: Frame, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> Markup:
    """Return a vertical line from each low value to its high value."""
    spans = zip(xs, lows, highs, strict=True)
    drawn = (f"M{frame.at_x(x)} {frame.at_y(low)}V{frame.at_y(high)}" for x, low, high in spans)
    return element("path", d="".join(drawn) or "M0 0", class_="stroke whisker")


def dots(frame: Frame, xs: Sequence[float], ys: Sequence[float], class_: str) -> Markup:
    """Return round points.

    Each point is a line of zero length with round ends, so it stays round when the SVG is stretched.
    """
    drawn = (f"M{frame.at_x(x)} {frame.at_y(y)}h0" for x, y in zip(xs, ys, strict=True))
    return element("path", d="".join(drawn) or "M0 0", class_=f"dot {class_}")


def across(frame: Frame, y: float, class_: str) -> Markup:
    """Return a horizontal line over the whole width at a y value."""
    return element("path", d=f"M0 {frame.at_y(y)}H{WIDTH}", class_=f"stroke {class_}")


def upright(frame: Frame, x: float, class_: str) -> Markup:
    """Return a vertical line over the whole height at an x value."""
    return element("path", d=f"M{frame.at_x(x)} 0V{HEIGHT}", class_=f"stroke {class_}")


def note(frame: Frame, text: str, *, x: float | None = None, y: float | None = None, class_: str = "") -> Markup:
    """Return a text label inside the plot, beside a vertical line at ``x`` or above a horizontal line at ``y``."""
    style = []
    if x is not None:
        at = frame.x.fraction(x)
        style.append(f"left:{100 * at:.2f}%" if at < 0.7 else f"right:{100 * (1 - at):.2f}%")
    if y is not None:
        style.append(f"bottom:{100 * frame.y.fraction(y):.2f}%")
    return element("span", text, class_=f"note {class_}", style=";".join(style))


def plot(
    frame: Frame,
    *marks: Markup,
    label: str,
    notes: Sequence[Markup] = (),
    hover: str | None = None,
    size: str = "",
    ticks: tuple[int, int] = (6, 4),
) -> Markup:
    """Return a chart: two labelled axes with marks such as lines and columns.

    Args:
        frame: The axes.
        marks: The marks to draw, later ones above earlier ones.
        label: A description of the chart in one sentence, for screen readers.
        notes: Text labels inside the plot.
        hover: The result of `hover_data`, or None.
        size: ``small`` or ``tiny`` for a plot of smaller height.
        ticks: The approximate largest number of ticks on the x and the y axis.
    """
    across_ticks, up_ticks = frame.x.ticks(ticks[0]), frame.y.ticks(ticks[1])
    grid = "".join(f"M0 {frame.at_y(value)}H{WIDTH}" for value, _ in up_ticks)
    drawing = element(
        "svg",
        element("path", d=grid or "M0 0", class_="stroke grid"),
        element("g", *marks, class_="marks"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
    return element(
        "div",
        _labels(up_ticks, frame.y, "y", "bottom"),
        element("div", drawing, *notes, class_="area"),
        element("div", X_NAMES.get(frame.x.unit, frame.x.unit), class_="x-name", aria_hidden="true"),
        _labels(across_ticks, frame.x, "x", "left"),
        class_=f"plot {size}".strip(),
        data_x=f"{frame.x.low:.10g},{frame.x.high:.10g},{frame.x.unit}",
        data_y=f"{frame.y.low:.10g},{frame.y.high:.10g},{int(frame.y.log)}",
        data_hover=hover,
    )


def _labels(ticks: Sequence[tuple[float, str]], axis: Axis, class_: str, edge: str) -> Markup:
    made = [_label(text, axis.fraction(value), edge) for value, text in ticks]
    return element("div", *made, class_=class_, aria_hidden="true")


def _label(text: str, at: float, edge: str) -> Markup:
    """Return a tick label at its position; the last label of a row is aligned to stay on the page."""
    end = "end" if edge == "left" and at > 0.96 else None
    return element("span", text, style=f"{edge}:{100 * at:.2f}%", class_=end)


def hover_data(xs: Sequence[float], series: Sequence[Series], **others: Sequence[float]) -> str:
    """Return the values shown under the pointer as JSON.

    Args:
        xs: The x value of each point.
        series: The values of each line at these points.
        others: Further x values of the points in other units; the keyword is the unit.
    """
    packed = {
        "x": [_short(x, 6) for x in xs],
        "series": [[one.name, one.unit, [_short(value) for value in one.values]] for one in series],
        "others": {unit: [_short(x, 6) for x in values] for unit, values in others.items()},
    }
    return json.dumps(packed, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _short(value: float | None, digits: int = 3) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def swatch(class_: str) -> Markup:
    """Return a small square in the colour of a CSS class, for legends."""
    return element("i", class_=f"swatch {class_}", aria_hidden="true")


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Return a legend; each entry has the CSS class of the colour, and the name."""
    items = (element("li", swatch(class_), name) for class_, name in entries)
    return element("ul", *items, class_="legend")


def stacked(parts: Sequence[tuple[str, str, float]], label: str, *, named: bool = False, length: float = 1.0) -> Markup:
    """Return shares as one bar that is divided into parts.

    Args:
        parts: The CSS class, the name and the share of each part, in order.
        label: A description of the bar for screen readers.
        named: Whether the bar is high enough to contain numbers.
        length: The length of the bar as a share of the available width.
    """
    segments = []
    for class_, name, share in parts:
        shown = f"{100 * share:.0f}%" if named and share * length >= _LEAST_NAMED else None
        style = f"flex-grow:{share:.5f}"
        segments.append(element("span", shown, class_=class_, style=style, title=f"{name} {100 * share:.1f}%"))
    return element("div", join(segments), class_="stacked large" if named else "stacked", role="img", aria_label=label)


def phase_bar(shares: Mapping[str, float], *, named: bool = False, length: float = 1.0) -> Markup:
    """Return the shares of the phases as one bar; the other arguments are those of `stacked`."""
    parts = [(style.name, style.label, share) for style, share in shown(shares, 0.0)]
    label = ", ".join(f"{name} {units.percent(share)}" for _, name, share in parts if share >= 0.01)
    return stacked(parts, f"Shares of step time: {label}", named=named, length=length)


def meter(share: float, class_: str = "") -> Markup:
    """Return one share as a short bar."""
    width = f"width:{100 * min(1.0, max(0.0, share)):.2f}%"
    return element("span", element("span", class_=class_ or None, style=width), class_="meter", aria_hidden="true")
