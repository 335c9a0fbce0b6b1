"""The loss over the steps, with its first and last value, a target, and the first value that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.core import units
from paceline.explain.model import Diagnosis, LossCurve
from paceline.report import words
from paceline.report.page.axis import Axis, axis, log_axis
from paceline.report.page.chart import (
    Frame,
    Series,
    across,
    hover_data,
    line,
    note,
    plot,
    upright,
)
from paceline.report.page.markup import Markup, element, section
from paceline.report.page.thin import extremes

MAX_POINTS = 1200
LOG_DECADES = 2.0


def loss(diagnosis: Diagnosis) -> Markup | None:
    """Return the chart of the loss over steps, with JavaScript also over seconds and samples; None without a loss."""
    curve = diagnosis.loss
    if curve is None or not curve.steps:
        return None
    return section(
        "loss",
        "Loss",
        element("p", _summary(curve), class_="quiet"),
        _toggle(),
        _chart(curve),
    )


def _summary(curve: LossCurve) -> str:
    parts = []
    if words.finite(curve.first) is not None and words.finite(curve.last) is not None:
        ends = f"From {words.quantity(curve.first, '')} to {words.quantity(curve.last, '')}"
        parts.append(f"{ends}, {_averaged(curve)}.")
    if curve.first_bad_step is not None:
        parts.append(f"The loss is NaN or infinite from step {curve.first_bad_step:,} on.")
    if curve.target is not None:
        parts.append(f"The {of_target(curve)}.")
    return " ".join(parts)


def of_target(curve: LossCurve) -> str:
    """Return when the loss reached its target, as text; empty without a target."""
    if curve.target is None:
        return ""
    if not curve.target_reached:
        return f"target of {curve.target:g} was not reached"
    step, seconds = curve.target_reached["step"], curve.target_reached["seconds"]
    return f"target of {curve.target:g} was reached at step {step:,.0f}, after {units.seconds(seconds)}"


def _averaged(curve: LossCurve) -> str:
    """Return text on the first and last loss, which are single values or medians of several steps."""
    if curve.averaged < 2:
        return "the first and the last value"
    return f"the medians of the first {curve.averaged} and the last {curve.averaged} steps"


def _toggle() -> Markup:
    buttons = (
        element("button", f"by {name}", type="button", data_unit=unit, aria_pressed=str(unit == "steps").lower())
        for unit, name in (("steps", "steps"), ("s", "time"), ("samples", "samples"))
    )
    return element("div", *buttons, class_="toggle", role="group", aria_label="Horizontal axis", hidden=True)


def _chart(curve: LossCurve) -> Markup:
    kept = extremes(curve.values, MAX_POINTS)
    steps = [float(curve.steps[i]) for i in kept]
    values = [words.finite(curve.values[i]) for i in kept]
    x = axis(steps, "steps", floor=steps[0])
    frame = Frame(x=x, y=_y_axis(values))
    others = {"s": [curve.seconds[i] for i in kept], "samples": [curve.samples[i] for i in kept]}
    known = {unit: xs for unit, xs in others.items() if all(math.isfinite(value) for value in xs)}
    hover = hover_data(steps, [Series(name="loss", unit="", values=values)], **known)
    marks, notes = _marked(curve, frame)
    label = f"Loss over {words.count(len(curve.steps), 'point')}. {_summary(curve)}"
    return plot(frame, *marks, line(frame, steps, values, "curve"), label=label, notes=notes, hover=hover)


def _y_axis(values: Sequence[float | None]) -> Axis:
    known = [value for value in values if value is not None]
    if known and min(known) > 0 and math.log10(max(known) / min(known)) > LOG_DECADES:
        return log_axis(known, "")
    return axis(known, "", floor=min(0.0, *known) if known else 0.0)


def _marked(curve: LossCurve, frame: Frame) -> tuple[list[Markup], list[Markup]]:
    marks, notes = [], []
    if curve.target is not None and frame.y.low <= curve.target <= frame.y.high:
        marks.append(across(frame, curve.target, "target"))
        notes.append(note(frame, f"target {curve.target:g}", y=curve.target, x=frame.x.low))
    if curve.first_bad_step is not None:
        marks.append(upright(frame, curve.first_bad_step, "bad"))
        text = f"not finite from step {curve.first_bad_step:,} on"
        notes.append(note(frame, text, x=curve.first_bad_step, class_="bad top"))
    return marks, notes
