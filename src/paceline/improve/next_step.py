"""What to type after a search, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline import units
from paceline.core.safety import SAFETY_CLASSES, Safety
from paceline.explain.next_step import NextStep
from paceline.improve.goals import GOALS
from paceline.improve.model import Trial, Tuned
from paceline.improve.wording import NOT_TRIED

DEFAULT_BUDGET_S = 600.0
_BUSY_CORES = 0.3  # taken by other programs: more than this widens the intervals of a search
_LONGER = 2.0  # times the budget that was too small
_SECONDS_OF_STEPS = 60.0  # that a program should train for, so that its changes can be compared


def next_steps(tuned: Tuned, program: str, recipe_file: str | None) -> list[NextStep]:
    """Return what to do after a search, the first step first.

    Args:
        tuned: The result of the search.
        program: The program as it is typed after a verb.
        recipe_file: Where the recipe was written; None if nothing was kept.
    """
    allow = _allow(tuned, program)
    if recipe_file is not None:
        run = NextStep(text="run the program with the recipe", command=f"paceline run --recipe {recipe_file} {program}")
        return [run, *([allow] if allow is not None else [])]
    steps = [_again(tuned, program), _longer_program(tuned), _more_budget(tuned, program), allow]
    return [step for step in steps if step is not None] or [_explain(tuned, program)]


def busy_text(tuned: Tuned) -> str | None:
    """Say that other programs used the machine during the trials; None if they did not, or it was not measured."""
    cores = _busy_cores(tuned)
    return (
        None
        if cores is None
        else (
            f"other programs used {cores} on average during the trials, which makes the confidence intervals wider; "
            "for narrower intervals, run paceline tune again when the machine is idle"
        )
    )


def _again(tuned: Tuned, program: str) -> NextStep | None:
    """Return the command that searches again, if the search was interrupted."""
    if not tuned.stopped.startswith("interrupted"):
        return None
    command = f"paceline tune{_allowed(tuned)}{_budget(tuned.budget_s)} {program}"
    return NextStep(text="the search was interrupted before a change was kept", command=command)


def _busy_cores(tuned: Tuned) -> str | None:
    if tuned.other_cores is None or tuned.other_cores <= _BUSY_CORES:
        return None
    return f"{tuned.other_cores:.1f} core{'s' * (tuned.other_cores >= 1.05)}"


def _allow(tuned: Tuned, program: str) -> NextStep | None:
    """Return the command that allows what is expected to gain more than what was found."""
    if GOALS[tuned.goal].aim != "time":
        return None
    found = tuned.speedup.value if tuned.best and tuned.speedup is not None else GOALS[tuned.goal].worth
    larger = [t for t in tuned.trials if _was_not_allowed(t, tuned.allowed) and _expected(t) > found]
    if not larger:
        return None
    safest = min((t.safety for t in larger), key=SAFETY_CLASSES.index)
    larger = [t for t in larger if t.safety == safest]
    most = max(larger, key=_expected)
    assert most.predicted is not None  # `_expected` is above 1
    gain = f"{units.factor(most.predicted.low)} to {units.factor(most.predicted.high)}"
    also = f" (and {len(larger) - 1} more)" if len(larger) > 1 else ""
    return NextStep(
        text=f"{most.remedy}{also} was not tried, because it is {most.safety}; its expected speed-up is {gain}",
        command=f"paceline tune --allow {most.safety}{_budget(_enough_s(tuned))} {program}",
    )


def _enough_s(tuned: Tuned) -> float:
    """Return the budget of a next search: the same, unless nothing could be measured in it."""
    measured = any(trial.speedup is not None for trial in tuned.trials)
    return tuned.budget_s if measured or not tuned.out_of_budget else _larger_s(tuned)


def _larger_s(tuned: Tuned) -> float:
    return 60.0 * math.ceil(max(_LONGER * tuned.budget_s, 2 * tuned.wall_s) / 60)


def _was_not_allowed(trial: Trial, allowed: Sequence[Safety]) -> bool:
    return trial.status == "skipped" and trial.safety not in allowed


def _expected(trial: Trial) -> float:
    """Return the middle of the predicted interval; 1 if nothing was predicted."""
    return math.sqrt(trial.predicted.low * trial.predicted.high) if trial.predicted is not None else 1.0


def _longer_program(tuned: Tuned) -> NextStep | None:
    """Return what to do about a program that is over before anything can be measured."""
    short = tuned.stopped if tuned.stopped.startswith("too short") else None
    short = short or next((t.reason for t in tuned.trials if t.reason.startswith("too short")), None)
    if short is None:
        return None
    step_s = tuned.before.step_s.value if tuned.before.step_s is not None else 0.0
    steps = f", about {math.ceil(_SECONDS_OF_STEPS / step_s):,} steps" if step_s > 0 else ""
    return NextStep(
        text=f"let the program train for at least a minute{steps}, with more epochs or more data, and run paceline "
        f"tune again",
        command=None,
    )


def _more_budget(tuned: Tuned, program: str) -> NextStep | None:
    """Return the command with a larger budget, if the budget ended the search or left a comparison undecided."""
    undecided = [t for t in tuned.trials if t.status == "no-win" and t.speedup is not None and _is_open(t, tuned)]
    waiting = [t for t in tuned.trials if t.status == "skipped" and t.safety in tuned.allowed and _had_no_time(t)]
    if not undecided and not waiting and (not tuned.out_of_budget or _allow(tuned, program) is not None):
        return None
    what = "the time budget was too small for a result" if tuned.out_of_budget else "too few measurements for a result"
    cores = _busy_cores(tuned)
    busy = f", and other programs used {cores}: run it when the machine is idle" if cores is not None else ""
    command = f"paceline tune{_allowed(tuned)}{_budget(_larger_s(tuned))} {program}"
    return NextStep(text=what + busy, command=command)


def _had_no_time(trial: Trial) -> bool:
    return trial.reason == NOT_TRIED or trial.reason.startswith("not measured")


def _is_open(trial: Trial, tuned: Tuned) -> bool:
    """Say whether a trial was ended before it was certain that its gain is not worth having."""
    gained = trial.saving if GOALS[tuned.goal].aim == "memory" else trial.speedup
    worth = GOALS[tuned.goal].worth
    return gained is not None and gained.value >= worth and gained.low <= 1.0


def _explain(tuned: Tuned, program: str) -> NextStep:
    """Return the page of the verdict: what is left has to be changed in the source."""
    for finding in tuned.before.findings:
        if finding.name == tuned.before.verdict and finding.severity != "info":
            text = f"none of the changes that paceline tune can try helps; see how to fix {finding.name} by hand"
            return NextStep(text=text, command=f"paceline explain {finding.code}")
    return NextStep(text="keep the program unchanged", command=f"paceline run {program}")


def _allowed(tuned: Tuned) -> str:
    """Return the option for the classes that were allowed; nothing for the default."""
    return f" --allow {tuned.allowed[-1]}" if tuned.allowed[-1] != "resampled" else ""


def _budget(seconds: float) -> str:
    """Return the option for a budget, in minutes where that is a whole number; nothing for the default."""
    if seconds == DEFAULT_BUDGET_S:
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f" --budget {minutes}m" if not rest else f" --budget {math.ceil(seconds)}s"
