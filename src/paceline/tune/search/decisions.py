"""Which changes are kept, which are tried again, and the list of trials.

An undecided change may yet be proven together with others, by measuring it for longer, or as a better value of a
setting. Gains of 5 to 8% are smaller than the difference between two processes of the same program on many machines.
Several of them are not: a transformer whose two changes were measured at 1.07x and 1.08x, neither certain, gained
1.17x with both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.recipe import BASELINE, Recipe, describe_recipe, merge_recipes, setting_keys
from paceline.core.remedies import least_safe
from paceline.core.statistics import Interval
from paceline.explain.model import Gain
from paceline.tune.candidates import Candidate
from paceline.tune.comparison.model import ComparisonResult, StepTimes, block_seconds
from paceline.tune.comparison.paired_blocks import ComparisonRound
from paceline.tune.comparison.statistics import count_outliers, multiply_intervals
from paceline.tune.search.result import Status, Trial
from paceline.tune.trials.gpus import range_over_blocks

_MOST_ROUNDS = 9  # of a race: what is not certain then is left
_CLEARLY = 1.1  # faster: less is not worth a run with what was not proven
_LEAST = 1.01  # measured of each: what gained less is left out
_SURE = 1 / 3  # of how far the bound is off, on the log scale: so far off must a value be from no gain
_ONE_OF = frozenset({"optimizer.fused", "optimizer.foreach"})  # torch takes one of them


def record_trial(tried: Sequence[Trial], trial: Trial) -> list[Trial]:
    """Record a trial. If it continues an earlier comparison, or was skipped before, it replaces that entry."""
    for place, before in enumerate(tried):
        if _is_same(before, trial):
            last = replace(trial, id=before.id, seconds=before.seconds + trial.seconds)
            return [*tried[:place], last, *tried[place + 1 :]]
    return [*tried, trial]


def _is_same(before: Trial, trial: Trial) -> bool:
    if "skipped" in (before.status, trial.status):
        return before.status == trial.status and before.remedy == trial.remedy
    return before.recipe == trial.recipe


def withdraw_kept(tried: Sequence[Trial], comparison: ComparisonResult, reason: str) -> list[Trial]:
    """Return the trials with none kept, because a second comparison did not confirm what was kept."""
    status = status_of(comparison.verdict)
    return [replace(trial, status=status, reason=reason) if trial.status == "kept" else trial for trial in tried]


def measured_values(comparison: ComparisonResult) -> dict[str, object]:
    """Return what a comparison measured, as fields of a trial."""
    pairs = [pair for each in comparison.rounds for pair in each.pairs]
    return {
        "speedup": comparison.speedup,
        "saving": comparison.saving,
        "cpu_ratio": comparison.cpu_ratio,
        "set_aside": sum(len(each.pairs) - len(each.fair) for each in comparison.rounds),
        "far_off": count_outliers([block_seconds(pair) for each in comparison.rounds for pair in each.fair]),
        "rounds": len(comparison.rounds),
        "step_times": comparison.step_times,
        "gpu": range_over_blocks([block.gpu for pair in pairs for block in (pair.baseline, pair.candidate)]),
    }


def status_of(verdict: str) -> Status:
    """Return the status of a change that is not kept, by the verdict of its comparison."""
    return "undecided" if verdict == "undecided" else "no-win"


def check_most_promising(
    tried: Sequence[Trial],
    undecided: Sequence[UndecidedChange],
    proven: Callable[[Candidate, Trial, float], Trial],
    report: Callable[[str], None],
) -> tuple[list[Trial], Trial | None]:
    """Check that training is the same with the change that looked best, or with the next one where it is not.

    Args:
        tried: The trials so far.
        undecided: Changes whose gain was not proven.
        proven: Checks the training of a candidate whose trial began at some time.
        report: Takes a line on what happens.

    Returns:
        The trials, with those that are not safe told, and the trial of the change with its checks; None without one.
    """
    trials = list(tried)
    for one in most_promising(undecided):
        trial = next(t for t in trials if t.recipe == one.candidate.recipe and t.speedup is not None)
        report(f"checking whether training stays the same with {describe_recipe(trial.recipe)}, which looked fastest")
        checked = proven(one.candidate, trial, time.monotonic())
        if checked.status == "kept":
            return trials, replace(trial, checks=checked.checks)
        trials = record_trial(trials, checked)
    return trials, None


def prepares_s(candidate: Candidate, step_s: float) -> float:
    """Return how long a trial takes before anything counts: to begin, and to warm both programs up.

    Args:
        candidate: What is tried.
        step_s: Seconds of a step of the baseline; NaN if they are not known.
    """
    return candidate.startup_s + (2 * (candidate.warmup_steps or 0) * step_s if math.isfinite(step_s) else 0.0)


def drop_prediction(trial: Trial) -> Trial:
    """Drop the prediction of a change that was not tried: it was for the program before another change was kept."""
    return replace(trial, predicted=None, predicted_by_findings=None) if trial.status == "skipped" else trial


def successive_step_times(kept: Sequence[Trial]) -> StepTimes | None:
    """Return the step times before all kept changes and after them, if each was measured against those before it.

    The second is computed: the first, divided by the product of the speed-ups that were measured.
    """
    known = [trial.step_times for trial in kept if trial.step_times is not None]
    if not known or len(known) < len(kept):
        return None
    ratio = math.prod(one.candidate_s / one.baseline_s for one in known)
    return StepTimes(baseline_s=known[0].baseline_s, candidate_s=known[0].baseline_s * ratio)


def reference_recipe(kept: Sequence[Trial]) -> tuple[Recipe, Sequence[Trial]]:
    """Return the recipe that a proof compares with, the last semantic one, and the trials that were kept after it."""
    last = max((i for i, trial in enumerate(kept) if trial.safety == "semantic"), default=-1)
    return (kept[last].recipe if last >= 0 else BASELINE), kept[last + 1 :]


def is_refuted(comparison: ComparisonResult, gained: Interval | None) -> bool:
    """Say whether the last comparison contradicts the gain that it should confirm."""
    return comparison.verdict in ("no-win", "slow") or (gained is not None and gained.count > 0 and gained.value < 1)


def reason_to_keep(
    verdict: str, gained: Interval | None, others: Sequence[Interval | None], worth: float
) -> str | None:
    """Say why a change is to be kept; None where it is not.

    Args:
        verdict: Of its race.
        gained: By it.
        others: Gained by other values of the same setting that are kept.
        worth: Factor below which a gain is not worth having.
    """
    if verdict != "undecided" or gained is None:
        return "gain proven" if verdict == "win" else None
    if any(other is not None and is_better_value(gained, other, worth) for other in others):
        return "the fastest value of a setting with a proven gain"
    return None


@dataclass(frozen=True, kw_only=True)
class UndecidedChange:
    """A change that was tried, and neither proven nor ruled out."""

    candidate: Candidate
    base: Recipe  # what was kept then
    gained: Interval  # as a factor
    rounds: Sequence[ComparisonRound] = ()  # by which it was measured


def combine_undecided(tried: Sequence[UndecidedChange], best: Recipe, worth: float) -> Candidate | None:
    """Return a candidate that combines the undecided changes with the kept ones; None if there are fewer than two.

    Of changes that exclude each other the one that was measured to gain most is taken.

    Args:
        tried: In any order.
        best: What is kept by now; changes of settings that it has changed since are left out.
        worth: Factor below which a gain is not worth having.
    """
    chosen: list[UndecidedChange] = []
    for one in sorted(tried, key=lambda one: one.gained.value, reverse=True):
        if (
            one.gained.value >= _LEAST
            and _base_unchanged(one, best)
            and not any(_excludes(one, other) for other in chosen)
        ):
            chosen.append(one)
    if len(chosen) < 2 or math.prod(one.gained.value for one in chosen) < worth:
        return None
    return Candidate(
        remedy=" + ".join(one.candidate.remedy for one in chosen),
        recipe=merge_recipes(*(one.candidate.recipe for one in chosen)),
        safety=least_safe(one.candidate.safety for one in chosen),
        predicted=_predicted([one.gained for one in chosen]),
        why="each change seemed to make steps faster, but the gain of no single change was certain",
        startup_s=sum(one.candidate.startup_s for one in chosen),
        warmup_steps=max((one.candidate.warmup_steps or 0 for one in chosen), default=0) or None,
        aims=chosen[0].candidate.aims,
        progress=math.prod(one.candidate.progress for one in chosen),
    )


def earlier_comparison(tried: Sequence[UndecidedChange], best: Recipe, recipe: Recipe) -> UndecidedChange | None:
    """Return the earlier, undecided comparison of this change with the current baseline; None if there is none.

    Args:
        tried: In any order.
        best: What is kept by now.
        recipe: The change.
    """
    return next((one for one in tried if one.base == best and one.candidate.recipe == recipe), None)


def best_unfinished(tried: Sequence[UndecidedChange], best: Recipe, worth: float) -> UndecidedChange | None:
    """Return the undecided change with the largest gain that was compared with the present baseline.

    Args:
        tried: In any order.
        best: What is kept by now.
        worth: Factor below which a gain is not worth having.
    """
    found = [o for o in tried if o.base == best and o.gained.value >= worth and len(o.rounds) < _MOST_ROUNDS]
    return max(found, key=lambda one: one.gained.value, default=None)


def most_promising(tried: Sequence[UndecidedChange]) -> list[UndecidedChange]:
    """Return the changes of the unchanged program that looked clearly faster but were not proven, the fastest first.

    Args:
        tried: In any order.
    """
    same = [one for one in tried if not one.base and one.candidate.safety != "semantic"]
    found = [one for one in same if one.gained.value >= _CLEARLY]
    return sorted(found, key=lambda one: one.gained.value, reverse=True)


def is_better_value(gained: Interval, kept: Interval, worth: float) -> bool:
    """Say whether another value of a setting is the one to take, though it is not certain which of the two is better.

    Some value has to be taken: so of two that are both proven against the program without them, it is the one that
    measured better, unless that is a toss-up.

    Args:
        gained: By the other value, as a factor of what is kept.
        kept: Gained by the value that is kept.
        worth: Factor below which a gain is not worth having.
    """
    if gained.value < worth or gained.low <= 0 or kept.low * gained.low < worth:
        return False
    return math.log(gained.value) >= _SURE * math.log(gained.value / gained.low)


def _base_unchanged(one: UndecidedChange, best: Recipe) -> bool:
    """Say whether what a change sets is still as it was when it was tried."""
    return all(_value(best, key) == _value(one.base, key) for key in setting_keys(one.candidate.recipe))


def _excludes(one: UndecidedChange, other: UndecidedChange) -> bool:
    own, others = set(setting_keys(one.candidate.recipe)), set(setting_keys(other.candidate.recipe))
    return bool(own & others) or (bool(own & _ONE_OF) and bool(others & _ONE_OF))


def _value(recipe: Recipe, key: str) -> Any:
    table, _, name = key.partition(".")
    return recipe.get(table, {}).get(name)


def _predicted(gained: Sequence[Interval]) -> Gain | None:
    made = multiply_intervals(gained)
    return Gain(low=max(1.0, made.low), high=made.high) if made is not None else None
