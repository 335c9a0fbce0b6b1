"""Compare the times of two runs, and find what else differs: phases, findings, losses and settings.

Time for a step is the mean over the steady steps that both runs have: the means of the phases add up to it, and it is
what is paid for (a median would miss a stall in every tenth step). Its intervals are those of batch means. Where
other programs took cores, the interval also holds what the runs may have taken without waiting for a core.
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

_ALIKE = 0.01  # numbers of samples in a step that are this near to each other are the same
_NEGLIGIBLE_S = 1e-9
_COUNTS = 0.05  # a phase that takes this share of a step counts
_SAME_FACTOR = 1.25  # factors no further apart than this are the same
_LOSS_WINDOW = 20  # losses that make up the loss at a step
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
_LATE = _LATE_AND_HARMLESS | {"CONV001", "CONV002", "MEM002", "RUN005"}  # findings that show only after many steps

WALL = "wall"

Series = Mapping[str, Floats]
"""Seconds of steps in order: ``wall``, and the nine phases, which add up to it."""

Both = tuple[RunAnalysis, RunAnalysis]


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
    analysis = analyze_run(before), analyze_run(after)
    series = paired_series(*analysis)
    shared = _shared(analysis, told, tolerance)
    steps = len(series[0][WALL])
    return _too_short(steps, shared) if steps < MIN_STEPS else _judged(series, analysis, shared)


def _shared(analysis: Both, told: tuple[Diagnosis, Diagnosis], tolerance: float) -> dict[str, Any]:
    """Return the parts of a comparison that need no statistics of time."""
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
    """Return the result in a sentence. If other programs disturbed a run, it states only what is certain."""
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
    """Return the series of two runs over the steady steps that both have, so that the n-th of each belong together."""
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
    """Return the numbers of the steps that all ranks have."""
    numbers = [rank.rows["index"] for rank in ranks]
    return reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), numbers)


def _together(ranks: Sequence[RankAnalysis]) -> Sequence[RankAnalysis]:
    """Return the ranks to average over: all, or the slowest where they share too few steps to be training together."""
    least = min(len(rank.rows) for rank in ranks)
    if len(_shared_steps(ranks)) >= max(MIN_STEPS, least / 2):
        return ranks
    return [max(ranks, key=lambda rank: float(rank.walls.mean()))]


# ------------------------------------------------------------------------------------------------------ findings


def new_findings(before: Diagnosis, after: Diagnosis) -> list[Finding]:
    """Return the findings that only the run after has, unless the run before was too short to have them."""
    shorter = _steps_of(before) < _steps_of(after)
    return [f for f in _unshared(after, before) if not (shorter and f.code in _LATE_AND_HARMLESS)]


def gone_findings(before: Diagnosis, after: Diagnosis) -> list[Finding]:
    """Return the findings that only the run before has, unless the run after was too short to have them."""
    shorter = _steps_of(after) < _steps_of(before)
    return [f for f in _unshared(before, after) if not (shorter and f.code in _LATE)]


def _unshared(first: Diagnosis, second: Diagnosis) -> list[Finding]:
    """Return the findings of the first that the second does not have, without those that ask for nothing.

    A run that is too short for a diagnosis has no findings about speed, so nothing is concluded from their absence.
    """
    known = {finding.code for finding in second.findings}
    found = [f for f in first.findings if f.code not in known and f.severity != "info"]
    return [f for f in found if f.code in _LATE] if second.verdict == TOO_SHORT else found


def _steps_of(told: Diagnosis) -> int:
    return max((rank.steps for rank in told.ranks), default=0)


# ------------------------------------------------------------------------------------------------------ loss


def loss_change(before: Rank, after: Rank) -> LossChange | None:
    """Compare the losses up to the last step that both ranks have taken; None where one has none."""
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
    """Count the steps from the first on whose losses are the same to the last bit, and the steps in common."""
    _, first, second = np.intersect1d(before[0], after[0], assume_unique=True, return_indices=True)
    same = (before[1][first] == after[1][second]) | (np.isnan(before[1][first]) & np.isnan(after[1][second]))
    return (int(np.argmin(same)) if not same.all() else len(same)), len(same)


# -------------------------------------------------------------------------------------------------- settings


def differences(
    analysis: tuple[RunAnalysis, RunAnalysis], told: tuple[Diagnosis, Diagnosis]
) -> list[SettingDifference]:
    """Return what the two runs do not share: command, device, ranks, batch, versions, settings of the loader."""
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
    """Return what should be known before the comparison is believed."""
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
