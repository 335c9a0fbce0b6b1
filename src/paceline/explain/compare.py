"""Compare the step times of two runs, and list other differences: phases, findings, losses and settings.

The compared time is the mean over the steady steps that both runs have. This mean is the sum of the means of the
phases, and it determines the cost; a median would miss a stall in every tenth step. The confidence interval of the mean
comes from batch means. If other programs used the CPU, the interval is wider by the time for which steps may have
waited for a core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from paceline.core import units
from paceline.core.errors import UsageError
from paceline.core.statistics import Floats, Interval, mean_interval, median_interval, paired_ratio
from paceline.explain.analysis.contention import taken_by_others
from paceline.explain.analysis.ending import FINISHED, RUNNING
from paceline.explain.analysis.run_analysis import MIN_STEPS, RankAnalysis, RunAnalysis, analyze_run
from paceline.explain.comparison import (
    Basis,
    Comparison,
    LossChange,
    Outcome,
    PhaseChange,
    SettingDifference,
    whole_run,
)
from paceline.explain.diagnose import diagnose
from paceline.explain.model import Diagnosis, Finding
from paceline.explain.verdict import TOO_SHORT
from paceline.record import layout
from paceline.record.layout import PHASES
from paceline.record.run import Rank, Run, column

_ALIKE = 0.01  # two numbers of samples per step with a smaller relative difference are equal
_NEGLIGIBLE_S = 1e-9
_COUNTS = 0.05  # only phases with at least this share of a step are compared for a common factor
_SAME_FACTOR = 1.25  # factors whose ratio is at most this are equal
_LOSS_WINDOW = 20  # number of losses whose median is the loss at a step
_META = {"torch": "torch", "python": "Python", "threads": "compute threads of a rank"}
_LOADER = (
    "class",
    "dataset",
    "sampler",
    "collate_fn",
    "drop_last",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "start_method",
)
_CONTENTION = "HOST003"
_LATE_AND_HARMLESS = frozenset({"CONV003"})
_LATE = _LATE_AND_HARMLESS | {"CONV001", "CONV002", "MEM002", "RUN005"}  # findings that appear only after many steps

WALL = "wall"

Series = Mapping[str, Floats]
"""Seconds of the steps in order: ``wall``, and the nine phases, whose sum is ``wall``."""

Both = tuple[RunAnalysis, RunAnalysis]


def compare(before: Run, after: Run, tolerance: float) -> Comparison:
    """Compare two runs.

    Args:
        before: The reference run.
        after: The run to judge.
        tolerance: Accepted slow-down of a step, as a fraction of the step time of the reference run.

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
    analysis = analyze_run(before), analyze_run(after)
    series = paired_series(*analysis)
    shared = _shared(analysis, told, tolerance)
    steps = len(series[0][WALL])
    return _too_short(steps, shared) if steps < MIN_STEPS else _judged(series, analysis, shared)


def _shared(analysis: Both, told: tuple[Diagnosis, Diagnosis], tolerance: float) -> dict[str, Any]:
    """Return the fields of a comparison that need no statistics of step times."""
    return {
        "before": told[0],
        "after": told[1],
        "tolerance": tolerance,
        "basis": _basis(*told),
        "loss": loss_change(analysis[0].first.record, analysis[1].first.record),
        "new": new_findings(*told),
        "gone": gone_findings(*told),
        "differences": differences(analysis, told),
        "notes": notes(told),
        "whole_before": whole_run(analysis[0].run),
        "whole_after": whole_run(analysis[1].run),
        "launch_after": analysis[1].run.launches[0] if analysis[1].run.launches else None,
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


def _judged(series: tuple[Series, Series], analysis: Both, shared: dict[str, Any]) -> Comparison:
    told = shared["before"], shared["after"]
    divisors = [_samples(one) if shared["basis"] == "sample" else 1.0 for one in told]
    before, after = (
        {name: values / divisor for name, values in one.items()} for one, divisor in zip(series, divisors, strict=True)
    )
    measured = paired_ratio(before[WALL], after[WALL])
    time = _without_others(measured, *(taken_by_others(one) for one in analysis))
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
        is_disturbed=time != measured,
    )


def _without_others(ratio: Interval, before: float, after: float) -> Interval:
    """Widen the interval of a ratio of times (after / before) by the time that other programs may have cost either run.

    Args:
        ratio: The measured ratio.
        before: Share of the first run's step time in which other programs may have kept this run from a core.
        after: The same share for the second run.
    """
    return replace(ratio, low=ratio.low * (1 - after), high=ratio.high / (1 - before))


def outcome_of(time: Interval, tolerance: float) -> Outcome:
    """Return the outcome of a comparison, from the interval of the ratio of times (after / before)."""
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
    """Return "step" if both runs have equally many samples per step or the number is unknown, else "sample"."""
    if before.batch_size is None or after.batch_size is None:
        return "step"
    return "step" if abs(_samples(after) / _samples(before) - 1) <= _ALIKE else "sample"


def _phase_changes(before: Series, after: Series, changed: bool) -> list[PhaseChange]:
    """Return the changes of the phases that occur in either run, the largest change first."""
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
    """Return a note if all large phases changed by the same factor: the cause is then probably the machine."""
    whole = sum(change.before_s for change in changes)
    factors = [c.after_s / c.before_s for c in changes if c.before_s >= _COUNTS * whole]
    apart = abs(time.value - 1) > 0.05 and not time.low <= 1 <= time.high
    if not apart or len(factors) < 3 or max(factors) > _SAME_FACTOR * min(factors):
        return []
    return [
        "every phase of a step changed by about the same factor, so the machine is a more likely cause than the program"
    ]


# text


def _sentence(outcome: Outcome, time: Interval, tolerance: float, basis: Basis, *, is_disturbed: bool) -> str:
    """Return the result as a sentence. If other programs disturbed a run, state only the bound that is certain."""
    what = "a step takes" if basis == "step" else "a sample takes"
    allowed = f"the tolerance of {units.percent(tolerance)}"
    span = f"{_signed(time.low)} to {_signed(time.high)}"
    certain = {"faster": time.high, "slower": time.low, "regression": time.low} if is_disturbed else {}
    shown, at_least = certain.get(outcome, time.value), "at least " * (outcome in certain)
    amount = f"{what} {at_least}{_longer(shown)} (95% interval {span})"
    better = "runs on an idle machine" if is_disturbed else "longer runs"
    return {
        "regression": f"{amount}: a regression, which exceeds {allowed}",
        "cannot-tell": f"cannot tell: {amount}; {better} would show whether the change exceeds {allowed}",
        "slower": f"{amount}: slower, within {allowed}",
        "faster": f"{amount}: {at_least}{units.factor(1 / shown)} as fast",
        "same": f"{amount}: no change that exceeds {allowed}",
    }[outcome]


def _longer(factor: float) -> str:
    return f"{units.percent(abs(factor - 1))} {'more' if factor >= 1 else 'less'} time"


def _signed(factor: float) -> str:
    change = factor - 1
    return f"{'+' if change >= 0 else '-'}{units.percent(abs(change))}"


# --------------------------------------------------------------------------------------------------- steps of both runs


def paired_series(before: RunAnalysis, after: RunAnalysis) -> tuple[Series, Series]:
    """Return the series of two runs over the steady steps that both have. Equal positions belong to the same step."""
    ranks = _together(before.ranks), _together(after.ranks)
    common = _shared_steps([*ranks[0], *ranks[1]])
    return _series(ranks[0], common), _series(ranks[1], common)


def _series(ranks: Sequence[RankAnalysis], common: Floats) -> Series:
    at = [np.isin(rank.rows["index"], common) for rank in ranks]

    def averaged(name: str) -> Floats:
        columns = [rank.walls if name == WALL else rank.phases[name] for rank in ranks]
        mean: Floats = np.mean([values[rows] for values, rows in zip(columns, at, strict=True)], axis=0)
        return mean

    return {name: averaged(name) for name in (WALL, *PHASES)}


def _shared_steps(ranks: Sequence[RankAnalysis]) -> Floats:
    """Return the indices of the steps that all ranks have."""
    numbers = [rank.rows["index"] for rank in ranks]
    return reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), numbers)


def _together(ranks: Sequence[RankAnalysis]) -> Sequence[RankAnalysis]:
    """Return the ranks to average over: all ranks, or only the slowest if the ranks share too few steps."""
    least = min(len(rank.rows) for rank in ranks)
    if len(_shared_steps(ranks)) >= max(MIN_STEPS, least / 2):
        return ranks
    return [max(ranks, key=lambda rank: float(rank.walls.mean()))]


# ------------------------------------------------------------------------------------------------------ findings


def new_findings(before: Diagnosis, after: Diagnosis) -> list[Finding]:
    """Return the findings that only the second run has, unless the first run was too short to show them."""
    shorter = _steps_of(before) < _steps_of(after)
    return [f for f in _unshared(after, before) if not (shorter and f.code in _LATE_AND_HARMLESS)]


def gone_findings(before: Diagnosis, after: Diagnosis) -> list[Finding]:
    """Return the findings that only the first run has, unless the second run was too short to show them."""
    shorter = _steps_of(after) < _steps_of(before)
    return [f for f in _unshared(before, after) if not (shorter and f.code in _LATE)]


def _unshared(first: Diagnosis, second: Diagnosis) -> list[Finding]:
    """Return the findings of the first diagnosis that the second does not have, except those of severity `info`.

    If the second run is too short for a diagnosis, it has no findings about speed. The result then has only findings
    that appear after many steps.
    """
    known = {finding.code for finding in second.findings}
    found = [f for f in first.findings if f.code not in known and f.severity != "info"]
    return [f for f in found if f.code in _LATE] if second.verdict == TOO_SHORT else found


def _steps_of(told: Diagnosis) -> int:
    return max((rank.steps for rank in told.ranks), default=0)


# ------------------------------------------------------------------------------------------------------ loss


def loss_change(before: Rank, after: Rank) -> LossChange | None:
    """Compare the losses up to the last step that both ranks have made. Return None if a rank has no losses."""
    curves = _losses(before), _losses(after)
    if not all(len(steps) for steps, _ in curves):
        return None
    last = int(min(steps[-1] for steps, _ in curves))
    known = [values[(steps <= last) & np.isfinite(values)] for steps, values in curves]
    middle = [median_interval(values[-_LOSS_WINDOW:]) for values in known]
    alike, common = _alike(*curves)
    if middle[0] is None or middle[1] is None:
        return None
    return LossChange(step=last, before=middle[0], after=middle[1], steps_alike=alike, steps_common=common)


def _losses(rank: Rank) -> tuple[Floats, Floats]:
    rows = rank.steps[(rank.steps["flags"] & layout.FLAG_LOSS) != 0]
    return column(rows, "index"), column(rows, "loss")


def _alike(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> tuple[int, int]:
    """Return the number of leading steps with bitwise identical losses, and the number of steps in common."""
    _, first, second = np.intersect1d(before[0], after[0], assume_unique=True, return_indices=True)
    same = (before[1][first] == after[1][second]) | (np.isnan(before[1][first]) & np.isnan(after[1][second]))
    return (int(np.argmin(same)) if not same.all() else len(same)), len(same)


# -------------------------------------------------------------------------------------------------- settings


def differences(
    analysis: tuple[RunAnalysis, RunAnalysis], told: tuple[Diagnosis, Diagnosis]
) -> list[SettingDifference]:
    """Return the differences between the runs: command, device, ranks, batch, versions and loader settings."""
    before, after = (dict(_settings(*side)) for side in zip(analysis, told, strict=True))
    names = [*before, *(name for name in after if name not in before)]
    pairs = ((name, before.get(name, "none"), after.get(name, "none")) for name in names)
    return [SettingDifference(name=name, before=one, after=other) for name, one, other in pairs if one != other]


def _settings(analysis: RunAnalysis, told: Diagnosis) -> Iterator[tuple[str, str]]:
    meta = analysis.first.record.meta
    yield "command", told.command
    recipes = {launch.recipe for launch in analysis.run.launches}
    yield "recipe", ", ".join(sorted(filter(None, recipes))) or "none"
    yield "device", told.device_name or told.device
    yield "ranks", str(told.world)
    yield "batch size of a rank", "unknown" if told.batch_size is None else f"{told.batch_size:g}"
    for key, name in _META.items():
        yield name, str(meta.get(key, "unknown"))
    if told.loader is not None:
        yield "loader workers", str(told.loader.workers)
        yield "loader threads", str(told.loader.threads)
        yield from _loader_settings(told.loader.settings)


def _loader_settings(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key in _LOADER:
        if settings.get(key) is not None:
            yield f"loader {key}", str(settings[key])


# ----------------------------------------------------------------------------------------------------- notes


def notes(told: tuple[Diagnosis, Diagnosis]) -> list[str]:
    """Return notes on facts that make the comparison less reliable."""
    same = told[0].run_id == told[1].run_id
    found = ["BEFORE and AFTER name the same run; `paceline report` lists all runs"] if same else []
    contended = [any(finding.code == _CONTENTION for finding in one.findings) for one in told]
    if any(contended):
        which = "both runs were" if all(contended) else f"the run {'before' if contended[0] else 'after'} was"
        found.append(f"{which} slowed down by other programs that used the CPU ({_CONTENTION})")
    for which, one in zip(("before", "after"), told, strict=True):
        if one.exit_code is not None and one.ended != FINISHED:
            found.append(f"the run {which} did not finish: {one.ended}")
        elif one.ended == RUNNING:
            found.append(f"the run {which} is still running; its steps so far are compared")
        if one.verdict == TOO_SHORT:
            found.append(f"the run {which} is too short for a diagnosis, so it has no findings about speed")
    return found
