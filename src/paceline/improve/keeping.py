"""Which trials are kept, with what is a new one compared, and what stands in the list of trials?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.core.recipe import BASELINE, Recipe, in_words
from paceline.core.statistics import Interval
from paceline.improve.contest import Race
from paceline.improve.goals import seconds
from paceline.improve.gpu_blocks import over_blocks
from paceline.improve.model import Candidate, Status, StepTimes, Trial
from paceline.improve.statistics import far_off
from paceline.improve.together import Undecided, is_better_value, looked_best


def recorded(tried: Sequence[Trial], trial: Trial) -> list[Trial]:
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


def taken_back(tried: Sequence[Trial], race: Race, reason: str) -> list[Trial]:
    """Return the trials with none kept, because a second comparison did not confirm what was kept."""
    status = status_of(race.verdict)
    return [replace(trial, status=status, reason=reason) if trial.status == "kept" else trial for trial in tried]


def figures_of(race: Race) -> dict[str, object]:
    """Return what a comparison measured, as fields of a trial."""
    pairs = [pair for each in race.rounds for pair in each.pairs]
    return {
        "speedup": race.speedup,
        "saving": race.saving,
        "cpu_ratio": race.cpu_ratio,
        "set_aside": sum(len(each.pairs) - len(each.fair) for each in race.rounds),
        "far_off": far_off([seconds(pair) for each in race.rounds for pair in each.fair]),
        "rounds": len(race.rounds),
        "step_times": race.step_times,
        "gpu": over_blocks([block.gpu for pair in pairs for block in (pair.baseline, pair.candidate)]),
    }


def status_of(verdict: str) -> Status:
    """Return the status of a change that is not kept, by the verdict of its comparison."""
    return "undecided" if verdict == "undecided" else "no-win"


def with_checks(
    tried: Sequence[Trial],
    undecided: Sequence[Undecided],
    proven: Callable[[Candidate, Trial, float], Trial],
    told: Callable[[str], None],
) -> tuple[list[Trial], Trial | None]:
    """Check that training is the same with the change that looked best, or with the next one where it is not.

    Args:
        tried: The trials so far.
        undecided: Changes whose gain was not proven.
        proven: Checks the training of a candidate whose trial began at some time.
        told: Takes a line on what happens.

    Returns:
        The trials, with those that are not safe told, and the trial of the change with its checks; None without one.
    """
    trials = list(tried)
    for one in looked_best(undecided):
        trial = next(t for t in trials if t.recipe == one.candidate.recipe and t.speedup is not None)
        told(f"checking whether training stays the same with {in_words(trial.recipe)}, which looked fastest")
        checked = proven(one.candidate, trial, time.monotonic())
        if checked.status == "kept":
            return trials, replace(trial, checks=checked.checks)
        trials = recorded(trials, checked)
    return trials, None


def prepares_s(candidate: Candidate, step_s: float) -> float:
    """Return how long a trial takes before anything counts: to begin, and to warm both programs up.

    Args:
        candidate: What is tried.
        step_s: Seconds of a step of the baseline; NaN if they are not known.
    """
    return candidate.begins_s + (2 * (candidate.warmup_steps or 0) * step_s if math.isfinite(step_s) else 0.0)


def outdated(trial: Trial) -> Trial:
    """Drop the prediction of a change that was not tried: it was for the program before another change was kept."""
    return replace(trial, predicted=None, predicted_by_findings=None) if trial.status == "skipped" else trial


def step_times_in_turn(kept: Sequence[Trial]) -> StepTimes | None:
    """Return the step times before all kept changes and after them, if each was measured against those before it.

    The second is computed: the first, divided by the product of the speed-ups that were measured.
    """
    known = [trial.step_times for trial in kept if trial.step_times is not None]
    if not known or len(known) < len(kept):
        return None
    ratio = math.prod(one.candidate_s / one.baseline_s for one in known)
    return StepTimes(baseline_s=known[0].baseline_s, candidate_s=known[0].baseline_s * ratio)


def reference(kept: Sequence[Trial]) -> tuple[Recipe, Sequence[Trial]]:
    """Return the recipe that a proof compares with, the last semantic one, and the trials that were kept after it."""
    last = max((i for i, trial in enumerate(kept) if trial.safety == "semantic"), default=-1)
    return (kept[last].recipe if last >= 0 else BASELINE), kept[last + 1 :]


def refuted(race: Race, gained: Interval | None) -> bool:
    """Say whether a race speaks against what it was to confirm."""
    return race.verdict in ("no-win", "slow") or (gained is not None and gained.count > 0 and gained.value < 1)


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
