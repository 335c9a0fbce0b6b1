"""Messages of a search: why a change was not tried, why it is not kept, and the result of a trial."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.core.recipe import describe_recipe
from paceline.core.remedies import Safety
from paceline.core.statistics import Interval
from paceline.tune.candidates import Candidate
from paceline.tune.comparison.model import SLOWEST, Goal
from paceline.tune.comparison.statistics import LARGE
from paceline.tune.search.budget import Budget
from paceline.tune.search.decisions import UndecidedChange
from paceline.tune.search.result import OUTCOMES, Trial
from paceline.tune.trials.blocks import NO_TIME

_FEW_PAIRS = 30  # with fewer pairs than this, more measurements may prove a gain


NOT_TRIED = f"{NO_TIME} in the budget"


def skip_reason(candidate: Candidate, allowed: Sequence[Safety], goal: Goal) -> str:
    """Return why a change is not tried: its safety class is not allowed, or its expected gain is too small."""
    if candidate.safety not in allowed:
        return f"needs --allow {candidate.safety}"
    by_findings = candidate.predicted_by_findings
    if by_findings is not None and by_findings.high >= goal.worth:
        return f"in earlier trials on this machine, this change gained less than {goal.worth - 1:.0%}"
    return f"this change is expected to gain less than {goal.worth - 1:.0%}"


def preparation_too_long_message(prepares_s: float) -> str:
    """Return the message for a change that needs too much time before it can be measured."""
    return f"{NO_TIME}: a trial takes about {prepares_s:.0f} s to prepare"


def without_time(trials: Sequence[Trial], allowed: Sequence[Safety]) -> list[Trial]:
    """Return the allowed changes that were skipped for lack of time."""
    return [t for t in trials if t.status == "skipped" and t.safety in allowed and t.reason.startswith(NO_TIME)]


def budget_too_small_message(budget: Budget, spent_s: float, left_s: float, start_s: float) -> str | None:
    """Return the message for a budget that is too small for a single trial, or None if the time is enough.

    Args:
        budget: The time budget of the search.
        spent_s: Seconds that measuring the unchanged program took.
        left_s: Seconds until the budget is spent.
        start_s: Seconds that the program takes to reach its first step.
    """
    if budget.allows_trial(left_s, start_s):
        return None
    return (
        f"the time budget of {budget.total_s:.0f} s is too small for this program: measuring it without changes took "
        f"{spent_s:.0f} s, and a trial takes at least {budget.least_trial_s(start_s):.0f} s more"
    )


def budget_message(left_s: float, budget_s: float) -> str:
    """Return the message for a search that ended because of its budget."""
    if left_s <= 0:
        return f"the time budget of {budget_s:.0f} s is spent"
    return f"the rest of the time budget of {budget_s:.0f} s is too short for another trial"


def nothing_left_message(trials: Sequence[Trial], allowed: Sequence[Safety], goal: Goal) -> str:
    """Return the message for a search that ended without candidates that are allowed and have enough time."""
    if waiting := without_time(trials, allowed):
        changes = "1 untried change" if len(waiting) == 1 else f"{len(waiting)} untried changes"
        return f"the rest of the time budget is too short for {changes}"
    forbidden = any(trial.status == "skipped" and trial.safety not in allowed for trial in trials)
    which = "no untried change of the allowed safety classes" if forbidden else "no untried change"
    return f"{which} could give a speed-up of {goal.worth - 1:.0%} or more"


def no_win_reason(verdict: str, goal: Goal, gained: Interval | None, fewest: int) -> str:
    """Return why a change that was tried is not kept.

    Args:
        verdict: The verdict of its comparison.
        goal: The goal of the search.
        gained: The measured gain of the change, as a factor.
        fewest: Number of pairs of blocks that a gain needs, unless the gain is certainly large.
    """
    if verdict == "slow":
        return f"training needs less memory, but a step takes more than {SLOWEST} times as long"
    if verdict == "no-win":
        return f"the gain is certainly below {goal.worth - 1:.0%}"
    if gained is not None and gained.value >= goal.worth and gained.count < _FEW_PAIRS:
        few = f": a gain that may be below {LARGE:g}x needs {fewest} pairs" if gained.count < fewest else ""
        return f"too few measurements in the time of this trial{few}"
    return "the noise is larger than the difference"


def not_confirmed_message(goal: Goal, gained: Interval | None) -> str:
    """Return the message for a final comparison that did not confirm the gain of the kept changes."""
    what = "the peak memory smaller by a factor of" if goal.aim == "memory" else "the program"
    found = "no difference that could be measured" if gained is None else f"{what} {_interval_text(gained)}"
    return f"{found} in a second comparison, so nothing is kept"


def start_message(candidate: Candidate, earlier: UndecidedChange | None) -> str:
    """Return the line that announces a trial; for an undecided change, with the reason for measuring it again."""
    what = describe_recipe(candidate.recipe)
    if earlier is None:
        return f"trying {what}"
    return f"measuring {what} for longer, because it is undecided: {_interval_text(earlier.gained)} so far"


def trial_message(trial: Trial, goal: Goal) -> str:
    """Return the line with the result of a trial."""
    what, outcome = describe_recipe(trial.recipe), OUTCOMES[trial.status]
    if trial.speedup is None:
        return f"{what}: {outcome}, {trial.reason}"
    measured = _interval_text(trial.speedup)
    if goal.aim == "memory" and trial.saving is not None:
        measured = f"peak memory smaller by a factor of {_interval_text(trial.saving)}, speed {measured}"
    return f"{what}: {measured}, {outcome}: {trial.reason}"


def _interval_text(found: Interval) -> str:
    sample = f"{units.count(found.count, 'pair')} of blocks"
    return f"{units.factor(found.value)} ({units.factor_bounds(found.low, found.high, sample)})"
