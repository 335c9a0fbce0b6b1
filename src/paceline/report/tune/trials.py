"""The sections on trials: outcomes, with expected and measured gains on one logarithmic axis, and batch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from paceline.core import units
from paceline.core.statistics import Interval
from paceline.explain.model import Gain
from paceline.report import words
from paceline.report.page.axis import Axis
from paceline.report.page.chart import meter
from paceline.report.page.markup import Markup, details, element, join, section, sentence, table
from paceline.report.page.next_step import SAFETY
from paceline.report.tune import rows as tune_rows
from paceline.report.tune.rows import TrialRow
from paceline.report.tune.words import batch_lines
from paceline.tune.equivalence.outputs import Check
from paceline.tune.search.batch_size import BatchSize, BatchStudy
from paceline.tune.search.result import Trial, TuneResult

_ENDS = (0.25, 64.0)  # widest range of the axis
_LEAST = (0.9, 1.25)  # narrowest range of the axis
_TICKS = (
    1.0,
    2.0,
    4.0,
    8.0,
    16.0,
    32.0,
    64.0,
    0.5,
    0.25,
    1.5,
    3.0,
    1.2,
    0.8,
    1.1,
    0.9,
)  # the most important ones first
_APART = 0.13  # least distance between two ticks, as a share of the axis
_NEAR = 0.05  # least distance from the ends of the axis, so that labels do not stick out


def trials(tuned: TuneResult) -> Markup | None:
    """Return the section with the trials that were run; None without any."""
    made = tune_rows.rows(tuned)
    if not made:
        return None
    axis = axis_of(made)
    heads = (
        ("Change", ""), ("Expected", "num"), (_ticks(axis), "bar"), ("Measured", "num"), ("Outcome", ""),
    )  # fmt: skip
    what = "less memory" if tune_rows.for_memory(tuned) else "speed-up"
    said = (
        f"Each trial is compared with the best recipe that was found before the trial. The {what} is drawn on a "
        f"logarithmic scale."
    )
    return section(
        "trials",
        "Trials",
        element("p", said, class_="quiet"),
        _legend(),
        table(heads, (_row(row, axis) for row in made), class_="trials", stacks=False),
    )


def axis_of(made: Sequence[TrialRow]) -> Axis:
    """Return the axis that contains the expected and measured gains; extreme values are cut off."""
    ends = [end for row in made for end in _ends(row) if math.isfinite(end) and end > 0]
    low, high = max(_ENDS[0], min(_LEAST[0], *ends, 1.0)), min(_ENDS[1], max(_LEAST[1], *ends, 1.0))
    return Axis(low=low / 1.05, high=high * 1.05, unit="x", log=True)


def _ends(row: TrialRow) -> Iterator[float]:
    if row.gain is not None:
        yield from (row.gain.low, row.gain.value, row.gain.high)
    if row.expected is not None:
        yield from (row.expected.low, row.expected.high)


def ticks_of(axis: Axis) -> list[float]:
    """Return the round factors to label on the axis: 1 first, and none too close to another."""
    chosen: list[float] = []
    for tick in _TICKS:
        at = axis.fraction(tick)
        inside = axis.low <= tick <= axis.high and _NEAR <= at <= 1 - _NEAR
        if inside and all(abs(at - axis.fraction(other)) >= _APART for other in chosen):
            chosen.append(tick)
    return chosen


def _ticks(axis: Axis) -> Markup:
    made = (element("span", f"{tick:g}x", style=_at(axis, tick)) for tick in ticks_of(axis))
    return element("div", *made, class_="ticks", aria_hidden="true")


def _at(axis: Axis, value: float) -> str:
    return f"left:{100 * axis.fraction(value):.2f}%"


def _legend() -> Markup:
    keys = (("dot", "measured"), ("reach", "95% CI"), ("band", "expected"), ("even", "no gain"))
    made = (element("li", element("i", class_=f"key-{name}", aria_hidden="true"), text) for name, text in keys)
    return element("ul", *made, class_="legend")


def _row(row: TrialRow, axis: Axis) -> tuple[Markup, ...]:
    return _change(row), _expected(row), drawing(row, axis), _achieved(row), _outcome(row)


def _change(row: TrialRow) -> Markup:
    named = (element("code", text) for text in tune_rows.settings(row))
    return join((element("div", *named, class_="settings"), _badge(row.trial)))


def _badge(trial: Trial) -> Markup:
    return element("span", trial.safety, class_=f"badge {trial.safety}", title=SAFETY[trial.safety])


def _expected(row: TrialRow) -> Markup:
    told = element("div", tune_rows.expected(row.expected))
    findings = row.trial.predicted_by_findings
    if row.expected is None or findings is None or findings == row.expected:
        return told
    return join((told, element("small", f"by findings {tune_rows.expected(findings)}")))


def drawing(row: TrialRow, axis: Axis) -> Markup:
    """Return the chart of one trial: the expected gain as a band, the measured gain as a dot with its interval."""
    marks = [element("i", class_="even", style=_at(axis, 1.0))]
    if row.expected is not None and _drawable(row.expected):
        marks.append(_reach("band", row.expected, axis))
    if row.gain is not None and math.isfinite(row.gain.value):
        marks.append(_reach("reach", row.gain, axis))
        marks.append(element("i", class_="dot", style=_at(axis, row.gain.value)))
    return element("div", *marks, class_=f"drawn {row.trial.status}", aria_hidden="true")


def _drawable(gain: Gain) -> bool:
    return 0 < gain.low <= gain.high


def _reach(class_: str, ends: Gain | Interval, axis: Axis) -> Markup:
    low, high = (axis.fraction(max(end, 1e-9)) for end in (ends.low, ends.high))
    return element("i", class_=class_, style=f"left:{100 * low:.2f}%;width:{100 * max(0.0, high - low):.2f}%")


def _achieved(row: TrialRow) -> Markup:
    said = (tune_rows.bounds(row.gain), tune_rows.beside_expected(row))
    beside = (element("small", text) for text in said if text)
    return join((element("div", element("b", tune_rows.value(row.gain))), *beside))


# -- outcome ---------------------------------------------------------------------------------------------


def _outcome(row: TrialRow) -> Markup:
    trial = row.trial
    mark, word = tune_rows.outcome(trial).split(" ", 1)
    said = tune_rows.reason(trial)
    return join(
        (
            element("div", element("span", mark, aria_hidden="true"), f" {word}", class_=f"outcome {trial.status}"),
            element("small", sentence(said)) if said else None,
            _measured(row),
        )
    )


def _measured(row: TrialRow) -> Markup | None:
    """Return the folded details of a trial: its checks and measurements; None if there are none."""
    told = [*map(check_of, row.trial.checks), *(element("li", text) for text in _beneath(row))]
    if not told:
        return None
    passed = sum(check.passed for check in row.trial.checks)
    title = f"{passed} of {len(row.trial.checks)} checks passed" if row.trial.checks else "how it was measured"
    return details(title, element("ul", *told, class_="evidence"))


def check_of(check: Check) -> Markup:
    """Return the result of a check as a list item."""
    mark, class_ = ("✓", "passed") if check.passed else ("✗", "broken")
    return element("li", element("span", mark, aria_hidden="true"), f" {check.text}", class_=class_)


def _beneath(row: TrialRow) -> Iterator[str]:
    trial = row.trial
    if trial.rounds:
        aside = f", {words.count(trial.set_aside, 'pair')} discarded" if trial.set_aside else ""
        far = f", {words.count(trial.far_off, 'pair')} far from the median (counted)" if trial.far_off else ""
        yield f"{words.count(trial.rounds, 'round')} of processes{aside}{far}, {units.seconds(trial.seconds)} in all"
    if row.gain is trial.saving and trial.speedup is not None:
        yield f"speed {tune_rows.achieved(trial.speedup)}"
    elif all(memory := tune_rows.memory(trial.saving)):
        yield "peak memory {} ({})".format(*memory)
    if trial.cpu_ratio is not None and math.isfinite(trial.cpu_ratio) and trial.cpu_ratio > 0:
        yield f"CPU time of a step {units.factor(1 / trial.cpu_ratio)} of before"


# -- skipped trials -------------------------------------------------------------------------------------


def not_tried(tuned: TuneResult) -> Markup | None:
    """Return the section with the remedies that were not tried, and the reasons; None without any."""
    skipped = tune_rows.left_out(tuned.trials)
    if not skipped:
        return None
    heads = (("Remedy", ""), ("Class", ""), ("Expected", "num"), ("Why not", ""))
    made = (
        [element("code", one.remedy), _badge(one), tune_rows.expected(one.predicted), sentence(one.reason)]
        for one in skipped
    )
    return section("not-tried", "Not tried, and why", table(heads, made, class_="left-out", stacks=False))


def batch(tuned: TuneResult) -> Markup | None:
    """Return the section with speed and progress of each batch size; None if batch sizes were not measured."""
    found = tuned.batch
    if found is None:
        return None
    noise, *_, picks = batch_lines(found)
    heads = [
        ("Samples", "num"), ("A step", "num"), ("Samples a second", "num"), ("Memory, peak", "num"),
        ("Progress a step", "num"), ("Time for the same progress", "bar"), ("", "num"),
    ]  # fmt: skip
    longest = max((size.loss_s for size in found.sizes if size.loss_s is not None), default=1.0)
    return section(
        "batch",
        "Batch sizes",
        element("p", sentence(words.headline(noise)), class_="prose"),
        table(heads, (_size_row(size, longest) for size in found.sizes), class_="sizes"),
        element("p", sentence(words.headline(picks)), class_="quiet"),
        _failed_sizes(found),
    )


def _size_row(size: BatchSize, longest: float) -> list[str | Markup]:
    drawn = meter(size.loss_s / longest) if size.loss_s is not None else ""
    return [
        f"{size.samples:,}",
        units.seconds(size.step_s),
        units.rate(size.samples_per_s, "samples/s"),
        units.size(size.peak_bytes),
        f"{size.progress:.2f}",
        drawn,
        units.seconds(size.loss_s),
    ]


def _failed_sizes(found: BatchStudy) -> Markup | None:
    failed = [element("li", f"{size.samples:,} samples: {size.why_not}") for size in found.sizes if size.why_not]
    return element("ul", *failed, class_="evidence") if failed else None
