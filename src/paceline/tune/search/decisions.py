"""Decisions of the search: which changes are kept, which are tried again, and the list of trials.

An undecided change can still be proven later: by a longer measurement, together with other undecided changes, or as a
better value of a setting. On many machines, a gain of 5 to 8% is smaller than the speed difference between two
processes of the same program, but several such gains together are larger. For example, two changes of a transformer
were measured at 1.07x and 1.08x, neither certain. Together they gained 1.17x.
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

_MOST_ROUNDS = 9  # most rounds of a comparison; a change that is undecided after them is not measured again
_CLEARLY = 1.1  # least speed-up for which an undecided change is proposed to the user
_LEAST = 1.01  # least measured gain of a change that is combined with others
_SURE = 1 / 3  # least log gain of a better value, as a share of the distance to the lower end of its interval
_ONE_OF = frozenset({"optimizer.fused", "optimizer.foreach"})  # torch accepts only one of them


def record_trial(tried: Sequence[Trial], trial: Trial) -> list[Trial]:
    """Return the trials with one more trial.

    The new trial replaces an earlier entry with the same recipe, or with the same remedy if both trials were skipped.
    """
    for place, before in enumerate(tried):
        if _is_same(before, trial):
            last = replace(trial, id=before.id, seconds=before.seconds + trial.seconds)
            return [*tried[:place], last, *tried[place + 1 :]]
    return [*tried, trial]


def _is_same(before: Trial, trial: Trial) -> bool:
    if "skipped" in (before.status, trial.status):
        return before.status == trial.status and before.remedy == trial.remedy
    return before.recipe == trial.recipe


def withdraw_kept(
    tried: Sequence[Trial], comparison: ComparisonResult, reason: str
) -> tuple[list[Trial], Trial | None]:
    """Give the kept trials a new status after a second comparison did not confirm their gain.

    Returns:
        All trials, and the fastest one that was kept; None if it certainly has no gain.
    """
    status = status_of(comparison.verdict)
    kept = [replace(trial, status=status, reason=reason) for trial in tried if trial.status == "kept"]
    changed = iter(kept)
    trials = [next(changed) if trial.status == "kept" else trial for trial in tried]
    fastest = max(kept, key=lambda trial: trial.speedup.value if trial.speedup is not None else 0.0)
    return trials, fastest if status == "undecided" else None


def measured_values(comparison: ComparisonResult) -> dict[str, object]:
    """Return the measurements of a comparison as fields of `Trial`."""
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
    """Check the equivalence of the fastest unproven change; if the check fails, check the next one.

    Args:
        tried: The trials so far.
        undecided: Changes whose gain was not proven.
        proven: Function that checks the equivalence. Its arguments are the candidate, the trial and the start time.
        report: Function that prints a progress line.

    Returns:
        The trials, in which changes that failed the check are marked. Then the first trial that passed, or None.
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
    """Return the seconds of a trial before its measurement begins: start-up and warm-up of both programs.

    Args:
        candidate: The candidate of the trial.
        step_s: Seconds of one step of the baseline, or NaN if unknown.
    """
    return candidate.startup_s + (2 * (candidate.warmup_steps or 0) * step_s if math.isfinite(step_s) else 0.0)


def drop_prediction(trial: Trial) -> Trial:
    """Return a skipped trial without its prediction, which is outdated because another change was kept since.

    Other trials are returned unchanged.
    """
    return replace(trial, predicted=None, predicted_by_findings=None) if trial.status == "skipped" else trial


def successive_step_times(kept: Sequence[Trial]) -> StepTimes | None:
    """Return the step times before and after all kept changes, or None if a kept trial has no step times.

    The time after all changes is not measured: it is the time before them, divided by the product of the speed-ups.
    """
    known = [trial.step_times for trial in kept if trial.step_times is not None]
    if not known or len(known) < len(kept):
        return None
    ratio = math.prod(one.candidate_s / one.baseline_s for one in known)
    return StepTimes(baseline_s=known[0].baseline_s, candidate_s=known[0].baseline_s * ratio)


def reference_recipe(kept: Sequence[Trial]) -> tuple[Recipe, Sequence[Trial]]:
    """Return the recipe that equivalence is checked against, and the trials that were kept after it.

    The recipe is that of the last kept semantic change, or the baseline if no semantic change was kept.
    """
    last = max((i for i, trial in enumerate(kept) if trial.safety == "semantic"), default=-1)
    return (kept[last].recipe if last >= 0 else BASELINE), kept[last + 1 :]


def is_unconfirmed(comparison: ComparisonResult, gained: Interval | None) -> bool:
    """Return whether the final comparison fails to show the gain, for example because its interval contains 1."""
    if comparison.verdict != "undecided" or gained is None or not gained.count:
        return comparison.verdict in ("no-win", "slow")
    return gained.value < 1 or (has_bounds(gained) and gained.low <= 1)


def has_bounds(gained: Interval | None) -> bool:
    """Return whether there were enough pairs of blocks for an interval."""
    return gained is not None and gained.low > 0 and math.isfinite(gained.high)


def reason_to_keep(
    verdict: str, gained: Interval | None, others: Sequence[Interval | None], worth: float
) -> str | None:
    """Return the reason to keep a change, or None if it is not kept.

    Args:
        verdict: The verdict of the comparison.
        gained: The gain of the change.
        others: The gains of kept changes that set the same setting to other values.
        worth: Gains below this factor are not worth having.
    """
    if verdict != "undecided" or gained is None:
        return "gain proven" if verdict == "win" else None
    if any(other is not None and is_better_value(gained, other, worth) for other in others):
        return "the fastest value of a setting with a proven gain"
    return None


@dataclass(frozen=True, kw_only=True)
class UndecidedChange:
    """A change whose comparison ended undecided."""

    candidate: Candidate
    base: Recipe  # the kept recipe at that time
    gained: Interval  # the measured gain as a factor
    rounds: Sequence[ComparisonRound] = ()  # the rounds of the comparison


def combine_undecided(tried: Sequence[UndecidedChange], best: Recipe, worth: float) -> Candidate | None:
    """Return a candidate that combines the undecided changes, or None if fewer than two can be combined.

    If changes exclude each other, only the one with the largest measured gain is included.

    Args:
        tried: The undecided changes, in any order.
        best: The current best recipe. Changes of settings that this recipe has changed since the comparison are left
            out.
        worth: Combinations whose expected gain is below this factor are not worth a trial.
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
    """Return the earlier, undecided comparison of a change with the current best recipe, or None.

    Args:
        tried: The undecided changes, in any order.
        best: The current best recipe.
        recipe: The recipe of the change.
    """
    return next((one for one in tried if one.base == best and one.candidate.recipe == recipe), None)


def best_unfinished(tried: Sequence[UndecidedChange], best: Recipe, worth: float) -> UndecidedChange | None:
    """Return the undecided change with the largest gain that is worth a longer comparison, or None.

    Only changes that were compared with the current best recipe, in less than the largest number of rounds, count.

    Args:
        tried: The undecided changes, in any order.
        best: The current best recipe.
        worth: Changes with a smaller gain than this factor are left out.
    """
    found = [o for o in tried if o.base == best and o.gained.value >= worth and len(o.rounds) < _MOST_ROUNDS]
    return max(found, key=lambda one: one.gained.value, default=None)


def most_promising(tried: Sequence[UndecidedChange]) -> list[UndecidedChange]:
    """Return the undecided changes of the unchanged program that were at least 1.1x faster, the fastest first.

    Args:
        tried: The undecided changes, in any order.
    """
    same = [one for one in tried if not one.base and one.candidate.safety != "semantic"]
    found = [one for one in same if one.gained.value >= _CLEARLY]
    return sorted(found, key=lambda one: one.gained.value, reverse=True)


def is_better_value(gained: Interval, kept: Interval, worth: float) -> bool:
    """Return whether to replace the kept value of a setting by another value, although neither is certainly better.

    Both values are proven against the program without them. The value that measured faster is the better choice, unless
    the difference is mostly noise.

    Args:
        gained: Gain of the other value over the kept value, as a factor.
        kept: Gain of the kept value.
        worth: Gains below this factor are not worth having.
    """
    if gained.value < worth or gained.low <= 0 or kept.low * gained.low < worth:
        return False
    return math.log(gained.value) >= _SURE * math.log(gained.value / gained.low)


def _base_unchanged(one: UndecidedChange, best: Recipe) -> bool:
    """Return whether the settings of a change have the same values in the best recipe as when the change was tried."""
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
