"""The charts of a comparison: one chart with the step times of both runs, and one with their losses."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core import units
from paceline.explain.comparison import Comparison
from paceline.explain.model import Diagnosis
from paceline.report import words
from paceline.report.compare.rows import rows
from paceline.report.page.axis import Axis, axis, log_axis
from paceline.report.page.chart import Frame, Series, hover_data, legend, line, plot
from paceline.report.page.markup import Markup, element, section
from paceline.report.page.thin import extremes, merged

MAX_BUCKETS = 250  # per run
MAX_POINTS = 600  # per curve
LOG_DECADES = 2.0
_BEYOND = 4.0  # multiple of the usual step time; slower buckets exceed the scale
_KEY = (("before", "before"), ("after", "after"))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The values of one run over its steps."""

    steps: Sequence[float]
    values: Sequence[float | None]

    def at(self, step: float) -> float | None:
        """Return the value of the last point at or before a step; None outside the range of steps."""
        place = bisect_right(self.steps, step) - 1
        return self.values[place] if place >= 0 and step <= self.steps[-1] else None


def step_times(comparison: Comparison) -> Markup | None:
    """Return the chart with the step times of both runs; None if one of them has no timeline."""
    curves = [_times(run) for run in (comparison.before, comparison.after)]
    if any(curve is None for curve in curves):
        return None
    before, after = (curve for curve in curves if curve is not None)
    top = _ceiling([before, after])
    frame = Frame(x=_steps([before, after]), y=Axis(low=0.0, high=top, unit="s"))
    highest = max(value for curve in (before, after) for value in curve.values if value is not None)
    beyond = (
        f" Steps that take longer, up to {units.seconds(highest)}, are cut off at the top of the chart."
        if highest > top * 1.001
        else ""
    )
    return section(
        "timeline",
        "Step time",
        element("p", f"Step time over the steps of both runs.{beyond}", class_="quiet"),
        legend(_KEY),
        _plot(frame, before, after, "step time", "s"),
    )


def _times(run: Diagnosis) -> Curve | None:
    """Return the step times of the lowest rank that has step times; None if no rank has any."""
    rank = min((number for number, points in run.timelines.items() if points), default=None)
    if rank is None:
        return None
    points = merged(run.timelines[rank], MAX_BUCKETS)
    end = float(points[-1].step + points[-1].steps)
    steps = [*(float(point.step) for point in points), end]
    values = [*(words.finite(point.step_s) for point in points), words.finite(points[-1].step_s)]
    return Curve(steps=steps, values=values)


def _ceiling(curves: Sequence[Curve]) -> float:
    known = sorted(value for curve in curves for value in curve.values if value is not None)
    usual = known[int(0.9 * (len(known) - 1))] if known else 0.0
    return min(known[-1] * 1.05, _BEYOND * usual) if usual > 0 else 1.0


def _steps(curves: Sequence[Curve]) -> Axis:
    low = min(curve.steps[0] for curve in curves)
    return Axis(low=low, high=max(low + 1, *(curve.steps[-1] for curve in curves)), unit="steps")


def losses(comparison: Comparison) -> Markup | None:
    """Return the chart with the losses of both runs; None if one of them has no loss."""
    curves = [_loss(run) for run in (comparison.before, comparison.after)]
    if any(curve is None for curve in curves):
        return None
    before, after = (curve for curve in curves if curve is not None)
    told = next((row for row in rows(comparison) if row.label.startswith("loss")), None)
    said = f"{words.headline(told.label)}: {told.before} before, {told.after} after, {told.change}." if told else ""
    if comparison.loss is not None and comparison.loss.before.count > 1:
        said += f" Both are medians of the last {comparison.loss.before.count} steps."
    frame = Frame(x=_steps([before, after]), y=_loss_axis([before, after]))
    return section(
        "loss",
        "Loss",
        element("p", said, class_="quiet") if said else None,
        legend(_KEY),
        _plot(frame, before, after, "loss", ""),
    )


def _loss(run: Diagnosis) -> Curve | None:
    if run.loss is None or not run.loss.steps:
        return None
    kept = extremes(run.loss.values, MAX_POINTS)
    values = [words.finite(run.loss.values[i]) for i in kept]
    return Curve(steps=[float(run.loss.steps[i]) for i in kept], values=values)


def _loss_axis(curves: Sequence[Curve]) -> Axis:
    known = [value for curve in curves for value in curve.values if value is not None]
    if known and min(known) > 0 and math.log10(max(known) / min(known)) > LOG_DECADES:
        return log_axis(known, "")
    return axis(known, "", floor=min(0.0, *known) if known else 0.0)


def _plot(frame: Frame, before: Curve, after: Curve, what: str, unit: str) -> Markup:
    xs = sorted({*before.steps, *after.steps})
    series = [
        Series(name="before", unit=unit, values=[before.at(x) for x in xs]),
        Series(name="after", unit=unit, values=[after.at(x) for x in xs]),
    ]
    return plot(
        frame,
        line(frame, before.steps, _clipped(before, frame), "before"),
        line(frame, after.steps, _clipped(after, frame), "after"),
        label=f"The {what} of both runs over the steps",
        hover=hover_data(xs, series),
    )


def _clipped(curve: Curve, frame: Frame) -> list[float | None]:
    return [None if value is None else min(value, frame.y.high) for value in curve.values]
