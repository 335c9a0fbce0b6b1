"""The rows of a comparison, used by all its outputs: labels and numbers as plain text with units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.core import units
from paceline.core.statistics import Interval
from paceline.explain.comparison import Comparison, LossChange, PhaseChange
from paceline.explain.model import Finding
from paceline.explain.next_step import after_comparison
from paceline.report.phases import STYLES
from paceline.report.words import steps_of

_LEAST_SHARE = 0.01  # share of a step; phases that take less in both runs are left out
_TIME_UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
_WORTH_TELLING = 0.15  # least share of the change for a phase to be named
MAX_DIFFERENCES = 8
RUN_TIME = "whole run"


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One quantity of the two compared runs, as text."""

    label: str
    before: str
    after: str
    change: str = ""
    certain: bool = False  # whether the change is larger than noise


def rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return the rows of a comparison: time, its phases, throughput, memory, loss."""
    found = [
        *_time(comparison),
        *_phases(comparison),
        *_throughput(comparison),
        *_run_time(comparison),
        *_outside_steps(comparison),
        *_memory(comparison),
    ]
    return [*found, _loss(comparison.loss)] if comparison.loss is not None else found


def relative(factor: float) -> str:
    """Return a ratio as a change in percent: 1.12 is ``+12%``."""
    return f"{'-' if factor < 1 else '+'}{units.percent(abs(factor - 1))}"


def signed_interval(change: Interval) -> str:
    """Return a change of time with its bounds in one unit: ``+1.24 ms (+0.90 to +1.60 ms)``."""
    largest = max(abs(change.low), abs(change.high))
    scale, unit = next((x for x in _TIME_UNITS if largest >= 1 / x[0]), _TIME_UNITS[-1])
    value, low, high = (f"{'-' if x < 0 else '+'}{units.significant(abs(x) * scale)}" for x in _of(change))
    return f"{value} {unit} ({low} to {high} {unit})"


def _of(change: Interval) -> tuple[float, float, float]:
    return change.value, change.low, change.high


def _time(comparison: Comparison) -> Iterator[ComparisonRow]:
    before, after, ratio = comparison.time_before_s, comparison.time_after_s, comparison.ratio
    if before is None or after is None or ratio is None:
        return
    yield ComparisonRow(
        label=f"mean {comparison.basis}",
        before=units.seconds(before.value),
        after=units.seconds(after.value),
        change=f"{relative(ratio.value)} ({relative(ratio.low)} to {relative(ratio.high)})",
        certain=not ratio.low <= 1 <= ratio.high,
    )


def _phases(comparison: Comparison) -> Iterator[ComparisonRow]:
    whole = [x.value for x in (comparison.time_before_s, comparison.time_after_s) if x is not None]
    for one in comparison.phases:
        if max(one.before_s, one.after_s) >= _LEAST_SHARE * min(whole):
            yield _phase(one)


def _phase(one: PhaseChange) -> ComparisonRow:
    return ComparisonRow(
        label=STYLES[one.phase].label,
        before=units.seconds(one.before_s),
        after=units.seconds(one.after_s),
        change=signed_interval(one.change_s),
        certain=one.certain,
    )


def _throughput(comparison: Comparison) -> Iterator[ComparisonRow]:
    before, after = comparison.before.samples_per_s, comparison.after.samples_per_s
    if before is not None and after is not None and before > 0:
        yield ComparisonRow(
            label="steady throughput",
            before=units.rate(before, "samples/s"),
            after=units.rate(after, "samples/s"),
            change=relative(after / before),
        )


def _run_time(comparison: Comparison) -> Iterator[ComparisonRow]:
    """Yield the row with the wall time of both runs, which includes start-up, warm-up and evaluation."""
    sides = comparison.before, comparison.after
    before, after = (one.wall_s for one in sides)
    if before is None or after is None or before <= 0:
        return
    steps = [steps_of(one.ranks) for one in sides]
    told = ["" if steps[0] == steps[1] else f" ({units.count(number, 'step')})" for number in steps]
    ratio = after / before
    faster = f", {units.factor(1 / ratio)} as fast" if ratio < 1 else ""
    if comparison.is_disturbed:
        faster = "; other programs used the CPU"
    yield ComparisonRow(
        label=RUN_TIME,
        before=units.seconds(before) + told[0],
        after=units.seconds(after) + told[1],
        change=relative(ratio) + faster if steps[0] == steps[1] else "",
    )


def _outside_steps(comparison: Comparison) -> Iterator[ComparisonRow]:
    """Yield the row with the time before the first step and after the last step, which faster steps do not change."""
    before, after = comparison.whole_before, comparison.whole_after
    if before is None or after is None:
        return
    yield ComparisonRow(
        label="outside steps",
        before=units.seconds(before.outside_s),
        after=units.seconds(after.outside_s),
        change=units.signed_seconds(after.outside_s - before.outside_s),
    )


def _memory(comparison: Comparison) -> Iterator[ComparisonRow]:
    for key, label in (("peak_device_bytes", "device memory"), ("peak_rss_bytes", "host memory")):
        before, after = comparison.before.memory.get(key), comparison.after.memory.get(key)
        if before is not None and after is not None:
            sign = "-" if after < before else "+"
            change = f"{sign}{units.size(abs(after - before))}"
            yield ComparisonRow(label=label, before=units.size(before), after=units.size(after), change=change)


def _loss(loss: LossChange) -> ComparisonRow:
    apart = loss.before.high < loss.after.low or loss.after.high < loss.before.low
    if loss.steps_alike == loss.steps_common:
        change = f"the same in {'the only step' if loss.steps_common == 1 else f'all {loss.steps_common} steps'}"
    else:
        change = f"{loss.after.value - loss.before.value:+.3g}" + ("" if apart else ", within noise")
    return ComparisonRow(
        label=f"loss at step {loss.step}",
        before=units.significant(loss.before.value),
        after=units.significant(loss.after.value),
        change=change,
        certain=apart,
    )


# --------------------------------------------------------------------------------------------- lines of text


def reasons(comparison: Comparison) -> list[tuple[str, str]]:
    """Return labelled sentences about a comparison.

    They state what explains the change of the step time, new and gone findings, differing settings, and notes.
    """
    why = _why(comparison)
    lines = [("why", why)] if why else []
    lines += [("new", _finding(one)) for one in comparison.new] + [("gone", _finding(one)) for one in comparison.gone]
    lines += [("differs", text) for text in differing(comparison)]
    return [*lines, *(("note", text) for text in comparison.notes)]


def _why(comparison: Comparison) -> str:
    """Return text that names the phases that explain most of the change; empty if no phase certainly changed."""
    told = sorted((c for c in comparison.phases if c.certain), key=lambda c: -(c.explains or 0.0))
    parts = [c for c in told[:3] if (c.explains or 0.0) >= _WORTH_TELLING][: 1 if _mostly(told) else 3]
    changes = [units.signed_seconds(c.change_s.value) for c in parts]
    phases = [
        f"{STYLES[c.phase].label} {units.percent(c.explains)} ({change})"
        for c, change in zip(parts, changes, strict=True)
    ]
    return f"of the change, {', '.join(phases)}" if phases else ""


def _mostly(told: Sequence[PhaseChange]) -> bool:
    return bool(told) and (told[0].explains or 0.0) >= 0.75


def _finding(finding: Finding) -> str:
    return f"{finding.name} ({finding.code}): {finding.summary}"


def differing(comparison: Comparison) -> list[str]:
    """Return the settings that differ between the two runs as text, at most `MAX_DIFFERENCES`."""
    told = [f"{one.name}: {one.before} → {one.after}" for one in comparison.differences[:MAX_DIFFERENCES]]
    more = len(comparison.differences) - MAX_DIFFERENCES
    return [*told, f"and {more} more"] if more > 0 else told


def next_command(comparison: Comparison) -> str:
    """Return the command to run next; empty if there is none."""
    return after_comparison(comparison).command or ""


def next_text(comparison: Comparison) -> str:
    """Return what the next command does."""
    return after_comparison(comparison).text
