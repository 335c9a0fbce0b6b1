"""What got slower or faster between two runs, and why? Two records in, one `Comparison` out.

Time for a step is the mean over the steady steps that both runs have: the means of the phases add up to it, and it is
what is paid for (a median would miss a stall in every tenth step). Its intervals are those of batch means. Where
other programs took cores, the interval also holds what the runs may have taken without waiting for a core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.core import units
from paceline.core.errors import UsageError
from paceline.core.statistics import Floats, Interval, mean_interval, paired_ratio
from paceline.explain.comparison import Basis, Comparison, Outcome, PhaseChange
from paceline.explain.contention import taken_by_others
from paceline.explain.contrast import differences, gone_findings, loss_change, new_findings, notes
from paceline.explain.diagnose import diagnose
from paceline.explain.facts import MIN_STEPS, Facts, gather
from paceline.explain.model import Diagnosis
from paceline.explain.step_series import WALL, Series, paired_series
from paceline.explain.whole_run import whole_run
from paceline.record.layout import PHASES
from paceline.record.run import Run

_ALIKE = 0.01  # numbers of samples in a step that are this near to each other are the same
_NEGLIGIBLE_S = 1e-9
_COUNTS = 0.05  # a phase that takes this share of a step counts
_SAME_FACTOR = 1.25  # factors no further apart than this are the same

Both = tuple[Facts, Facts]


def compare(before: Run, after: Run, tolerance: float) -> Comparison:
    """Compare two runs.

    Args:
        before: The run that shows how it was.
        after: The run that is judged.
        tolerance: Slow-down of a step to accept, as a fraction of its time before.

    Raises:
        UsageError: A run has no training step.
    """
    told = diagnose(before), diagnose(after)
    for run, one in zip((before, after), told, strict=True):
        if not run.ranks:
            raise UsageError(
                f"nothing to compare: run {run.run_id} has no training step ({one.ended}); "
                f"`paceline report {run.run_id}` says more"
            )
    facts = gather(before), gather(after)
    series = paired_series(*facts)
    shared = _shared(facts, told, tolerance)
    steps = len(series[0][WALL])
    return _too_short(steps, shared) if steps < MIN_STEPS else _judged(series, facts, shared)


def _shared(facts: Both, told: tuple[Diagnosis, Diagnosis], tolerance: float) -> dict[str, Any]:
    """Return the parts of a comparison that need no statistics of time."""
    return {
        "before": told[0],
        "after": told[1],
        "tolerance": tolerance,
        "basis": _basis(*told),
        "loss": loss_change(facts[0].first.record, facts[1].first.record),
        "new": new_findings(*told),
        "gone": gone_findings(*told),
        "differences": differences(facts, told),
        "notes": notes(told),
        "whole_before": whole_run(facts[0].run),
        "whole_after": whole_run(facts[1].run),
        "launch_after": facts[1].run.launches[0] if facts[1].run.launches else None,
    }


def _too_short(steps: int, shared: dict[str, Any]) -> Comparison:
    return Comparison(
        **shared,
        outcome="cannot-tell",
        text=f"cannot tell: the two runs have {steps} steady steps (after the warm-up) in common, "
        f"but {MIN_STEPS} are needed",
        time_before_s=None,
        time_after_s=None,
        ratio=None,
        phases=(),
    )


def _judged(series: tuple[Series, Series], facts: Both, shared: dict[str, Any]) -> Comparison:
    told = shared["before"], shared["after"]
    divisors = [_samples(one) if shared["basis"] == "sample" else 1.0 for one in told]
    before, after = (_divided(one, divisor) for one, divisor in zip(series, divisors, strict=True))
    measured = paired_ratio(before[WALL], after[WALL])
    time = _without_others(measured, *(taken_by_others(one) for one in facts))
    outcome = outcome_of(time, shared["tolerance"])
    changes = _phase_changes(before, after, changed=not time.low <= 1 <= time.high)
    shared["notes"] += alike_everywhere(changes, time)
    return Comparison(
        **shared,
        outcome=outcome,
        text=_sentence(outcome, time, shared["tolerance"], shared["basis"], is_disturbed=time != measured),
        time_before_s=mean_interval(before[WALL]),
        time_after_s=mean_interval(after[WALL]),
        ratio=time,
        phases=changes,
    )


def _without_others(ratio: Interval, before: float, after: float) -> Interval:
    """Widen a ratio of times, after / before, by what other programs may have cost either run.

    Args:
        ratio: As it was measured.
        before: Share of the step time before in which other programs may have kept the run from a core.
        after: The same of the run after.
    """
    return replace(ratio, low=ratio.low * (1 - after), high=ratio.high / (1 - before))


def outcome_of(time: Interval, tolerance: float) -> Outcome:
    """Judge a ratio of times, after / before, by its interval."""
    if time.low > 1 + tolerance:
        return "regression"
    if time.high > 1 + tolerance:
        return "cannot-tell"
    if time.high < 1:
        return "faster"
    return "slower" if time.low > 1 else "same"


def _samples(one: Diagnosis) -> float:
    return (one.batch_size or 1.0) * max(1, one.world)


def _basis(before: Diagnosis, after: Diagnosis) -> Basis:
    """Compare steps where they train on equally many samples, or where that is not known; else samples."""
    if before.batch_size is None or after.batch_size is None:
        return "step"
    return "step" if abs(_samples(after) / _samples(before) - 1) <= _ALIKE else "sample"


def _divided(series: Series, divisor: float) -> Series:
    return {name: values / divisor for name, values in series.items()}


def _phase_changes(before: Series, after: Series, changed: bool) -> list[PhaseChange]:
    """Return the phases that there are in either run, the largest change first."""
    whole = float(after[WALL].mean() - before[WALL].mean())
    found = [_phase_change(name, before[name], after[name], whole if changed else None) for name in PHASES]
    there = [change for change in found if max(change.before_s, change.after_s) > _NEGLIGIBLE_S]
    return sorted(there, key=lambda change: -abs(change.change_s.value))


def _phase_change(name: str, before: Floats, after: Floats, whole: float | None) -> PhaseChange:
    change = mean_interval(after - before)
    return PhaseChange(
        phase=name,
        before_s=float(before.mean()),
        after_s=float(after.mean()),
        change_s=change,
        explains=change.value / whole if whole else None,
    )


def alike_everywhere(changes: Sequence[PhaseChange], time: Interval) -> list[str]:
    """Note when every phase that counts changed by the same factor: a slower machine does that, a program hardly."""
    whole = sum(change.before_s for change in changes)
    factors = [c.after_s / c.before_s for c in changes if c.before_s >= _COUNTS * whole]
    apart = abs(time.value - 1) > 0.05 and not time.low <= 1 <= time.high
    if not apart or len(factors) < 3 or max(factors) > _SAME_FACTOR * min(factors):
        return []
    return [
        "every phase of a step changed by about the same factor, so the machine is a more likely cause than the program"
    ]


# ----------------------------------------------------------------------------------------------------- words


def _sentence(outcome: Outcome, time: Interval, tolerance: float, basis: Basis, *, is_disturbed: bool) -> str:
    what = "a step takes" if basis == "step" else "a sample takes"
    allowed = f"the tolerance of {units.percent(tolerance)}"
    span = f"{_signed(time.low)} to {_signed(time.high)}"
    amount = f"{what} {_longer(time.value)} (95% interval {span})"
    better = "runs on an idle machine" if is_disturbed else "longer runs"
    return {
        "regression": f"{amount}: a regression, which exceeds {allowed}",
        "cannot-tell": f"cannot tell: {amount}; {better} would show whether the change exceeds {allowed}",
        "slower": f"{amount}: slower, within {allowed}",
        "faster": f"{amount}: {units.factor(1 / time.value)} as fast",
        "same": f"{amount}: no change that exceeds {allowed}",
    }[outcome]


def _longer(factor: float) -> str:
    return f"{units.percent(abs(factor - 1))} {'more' if factor >= 1 else 'less'} time"


def _signed(factor: float) -> str:
    change = factor - 1
    return f"{'+' if change >= 0 else '-'}{units.percent(abs(change))}"
