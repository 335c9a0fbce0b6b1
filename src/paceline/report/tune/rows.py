"""The rows of trials for all kinds of output: the change, the expected gain, and the measured gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core import units
from paceline.core.recipe import BASELINE, Recipe, describe_recipe
from paceline.core.statistics import Interval
from paceline.explain.model import Diagnosis, Gain
from paceline.report import words
from paceline.tune.comparison.model import GOALS
from paceline.tune.search.result import OUTCOMES, Trial, TuneResult

MARKS: Mapping[str, str] = {"kept": "✓", "no-win": "–", "undecided": "?", "failed": "▲", "unsafe": "✗"}
_SAID = ("gain proven",)  # reasons that repeat the outcome


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial that was run."""

    trial: Trial
    change: Recipe  # the settings that it changed relative to the recipe kept before
    gain: Interval | None  # the measured gain in the goal, time or memory
    expected: Gain | None  # the expected gain in time; memory is not predicted


def rows(tuned: TuneResult) -> list[TrialRow]:
    """Return the trials that were run, in order."""
    kept, made = BASELINE, []
    for trial in (one for one in tuned.trials if one.status != "skipped"):
        gain, expected = (trial.saving, None) if for_memory(tuned) else (trial.speedup, trial.predicted)
        made.append(TrialRow(trial=trial, change=_beyond(trial.recipe, kept), gain=gain, expected=expected))
        kept = trial.recipe if trial.status == "kept" else kept
    return made


def _beyond(recipe: Recipe, before: Recipe) -> Recipe:
    """Return the settings that `recipe` has in addition to `before`, or changes; all its settings if none differs."""
    found = {
        table: {key: value for key, value in settings.items() if before.get(table, {}).get(key) != value}
        for table, settings in recipe.items()
    }
    return {table: settings for table, settings in found.items() if settings} or recipe


def left_out(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that were skipped."""
    return [trial for trial in trials if trial.status == "skipped"]


def for_memory(tuned: TuneResult) -> bool:
    """Return whether the goal is less memory instead of less time."""
    return GOALS[tuned.goal].aim == "memory"


def in_all(tuned: TuneResult) -> Interval | None:
    """Return the gain of the best recipe over the baseline; None if no change was kept or measured."""
    found = tuned.saving if for_memory(tuned) else tuned.speedup
    return found if found is not None and math.isfinite(found.value) else None


def throughput(tuned: TuneResult) -> tuple[float, float] | None:
    """Return samples/s of all ranks without and with the kept changes; None if unknown.

    The step times are those of the comparison that gave the speed-up.
    """
    samples = [_samples(run) for run in (tuned.before, tuned.after)]
    if tuned.step_times is None or samples[0] is None or samples[1] is None:
        return None
    return samples[0] / tuned.step_times.baseline_s, samples[1] / tuned.step_times.candidate_s


def _samples(run: Diagnosis | None) -> float | None:
    """Return the number of samples that all ranks together process in a step; None if unknown."""
    return run.batch_size * run.world if run is not None and run.batch_size else None


def settings(row: TrialRow) -> list[str]:
    """Return the change of a trial as texts, one per setting: ``loader.num_workers=8``."""
    return [describe_recipe({table: {key: value}}) for table, own in row.change.items() for key, value in own.items()]


def expected(gain: Gain | None) -> str:
    """Return a predicted gain as text: ``1.55x to 2.10x``."""
    return "unknown" if gain is None else words.gain(gain)


def value(interval: Interval | None) -> str:
    """Return a measured gain as text: ``2.93x``."""
    return "not measured" if interval is None or math.isnan(interval.value) else units.factor(interval.value)


def bounds(interval: Interval | None) -> str:
    """Return the interval of a measured gain as text: ``95% CI 2.41–3.55, 24 pairs``; empty if not measured."""
    if interval is None or math.isnan(interval.value):
        return ""
    return units.factor_bounds(interval.low, interval.high, words.count(interval.count, "pair"))


def achieved(interval: Interval | None) -> str:
    """Return a measured gain with its interval as text: ``2.93x (95% CI 2.41–3.55, 24 pairs)``."""
    ends = bounds(interval)
    return f"{value(interval)} ({ends})" if ends else value(interval)


def memory(saving: Interval | None) -> tuple[str, str]:
    """Return the change in memory and its interval as texts: ``1.27x more``, ``95% CI 1.23–1.30, 29 pairs``.

    Both are empty if memory was not measured.
    """
    if saving is None or not 0 < saving.low <= saving.value <= saving.high < math.inf:
        return "", ""
    if units.factor(saving.value) == units.factor(1.0):
        return "as before", bounds(saving)
    if saving.value > 1:
        return f"{units.factor(saving.value)} less", bounds(saving)
    ends = Interval(value=1 / saving.value, low=1 / saving.high, high=1 / saving.low, count=saving.count)
    return f"{units.factor(ends.value)} more", bounds(ends)


def outcome(trial: Trial) -> str:
    """Return the outcome of a trial with its mark: ``✓ proven``."""
    return f"{MARKS.get(trial.status, ' ')} {OUTCOMES[trial.status]}"


def reason(trial: Trial) -> str:
    """Return why a trial ended as it did; empty if the outcome already says it."""
    return "" if trial.reason in _SAID else trial.reason


def beside_expected(row: TrialRow) -> str:
    """Return text that compares the measured gain with the expected gain; empty if one of them is unknown."""
    gain, found = row.expected, row.gain
    if gain is None or found is None or math.isnan(found.value):
        return ""
    if found.value > gain.high:
        return "more than expected"
    return "less than expected" if found.value < gain.low else "as expected"
