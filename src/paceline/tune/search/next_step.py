"""The commands to run after a search, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.core import units
from paceline.core.remedies import Safety
from paceline.core.statistics import Interval
from paceline.explain.next_step import NextStep
from paceline.tune.comparison.model import GOALS
from paceline.tune.search.messages import without_time
from paceline.tune.search.result import Trial, TuneResult

DEFAULT_BUDGET_S = 600.0
_OF_BUDGET = 0.3  # if a search without a trial took more than this share of its budget, the budget is too small
_BUSY_CORES = 0.3  # if other programs used more cores than this, the confidence intervals of a search are wider
_LONGER = 2.0  # factor on a budget that was too small
_TRIAL_S = 60.0  # approximate seconds of a trial, if no trial was measured
_MOST_LONGER = 10.0  # most times by which a comparison is made longer
_CLEAR = 1.1  # least expected speed-up for which a change of a less safe class is proposed
_PROVEN = 1.005  # least lower end of a proven gain
_SECONDS_OF_STEPS = 60.0  # least seconds of steps that a program needs so that changes can be compared


def next_steps(tuned: TuneResult, program: str, recipe_file: str | None, options: str = "") -> list[NextStep]:
    """Return what to do after a search, the first step first.

    Args:
        tuned: The result of the search.
        program: The program and its arguments, as typed after the subcommand.
        recipe_file: Path of the written recipe (the best or the unproven recipe), or None.
        options: Other options of the search than the budget and the safety class, with a space at the end. A proposed
            search gets the same options.
    """
    searched = f"{options}{program}"
    allow = _allow(tuned, searched)
    if recipe_file is not None and tuned.best:
        run = NextStep(text="run the program with the recipe", command=f"paceline run --recipe {recipe_file} {program}")
        return [step for step in (_crash(tuned, program), run, allow) if step is not None]
    again = _again(tuned, searched)
    more_budget = _more_budget(tuned, searched) if again is None else None
    looked_best = _looked_best(tuned, program, recipe_file)
    steps = [_crash(tuned, program), again, _longer_program(tuned), more_budget, looked_best, allow]
    return [step for step in steps if step is not None] or [_explain(tuned, program, searched)]


def _crash(tuned: TuneResult, program: str) -> NextStep | None:
    """Return the step for a program whose last run failed, or None. Faster training would not help such a program."""
    if tuned.last_failure is None:
        return None
    return NextStep(text="fix the crash first, and let the program run to its end", command=f"paceline run {program}")


def busy_text(tuned: TuneResult) -> str | None:
    """Return a message that other programs used the machine during the trials, or None."""
    cores = _busy_cores(tuned)
    return (
        None
        if cores is None
        else (
            f"other programs used {cores} on average during the trials, which makes the confidence intervals wider; "
            "for narrower intervals, run paceline tune again when the machine is idle"
        )
    )


def _again(tuned: TuneResult, program: str) -> NextStep | None:
    """Return the command that repeats an interrupted search, or None if the search was not interrupted."""
    if not tuned.stopped.startswith("interrupted"):
        return None
    command = f"paceline tune{_allowed(tuned)}{_budget(tuned.budget_s)} {program}"
    return NextStep(text="the search was interrupted before a change was kept", command=command)


def _looked_best(tuned: TuneResult, program: str, recipe_file: str | None) -> NextStep | None:
    """Return the command that runs the program with the unproven change, or None if there is no such change.

    A whole run gives more data than a trial.
    """
    trial = tuned.unproven
    if trial is None or trial.speedup is None or recipe_file is None:
        return None
    looked = f"it looked {units.factor(trial.speedup.value)} faster, which is not proven"
    return NextStep(
        text=f"{looked}: run the program with and without it, and compare the runs with paceline compare last~1 last",
        command=f"paceline run --recipe {recipe_file} {program}",
    )


def _busy_cores(tuned: TuneResult) -> str | None:
    if tuned.other_cores is None or tuned.other_cores <= _BUSY_CORES:
        return None
    return f"{tuned.other_cores:.1f} core{'s' * (tuned.other_cores >= 1.05)}"


def _allow(tuned: TuneResult, program: str) -> NextStep | None:
    """Return the command that allows another safety class, if a change of that class is expected to gain clearly more.

    Changes of the training algorithm (class semantic) are never proposed, because they are a decision of the user.
    """
    if GOALS[tuned.goal].aim != "time":
        return None
    found = max(_CLEAR, tuned.speedup.value if tuned.best and tuned.speedup is not None else _CLEAR)
    larger = [t for t in tuned.trials if _may_be_proposed(t, tuned.allowed) and _expected(t) > found]
    if not larger:
        return None
    most = max(larger, key=_expected)
    assert most.predicted is not None  # `_expected` is above 1
    gain = f"{units.factor(most.predicted.low)} to {units.factor(most.predicted.high)}"
    also = f" (and {len(larger) - 1} more)" if len(larger) > 1 else ""
    return NextStep(
        text=f"{most.remedy}{also} was not tried, because it is {most.safety}; its expected speed-up is {gain}",
        command=f"paceline tune --allow {most.safety}{_budget(_enough_s(tuned))} {program}",
    )


def _enough_s(tuned: TuneResult) -> float:
    """Return the budget for the next search in seconds: the same budget, or a larger one if this one was too small."""
    measured = any(trial.speedup is not None for trial in tuned.trials)
    slow = not measured and tuned.wall_s > _OF_BUDGET * tuned.budget_s  # measuring the baseline took much of the budget
    was_too_small = tuned.out_of_budget or bool(_undecided(tuned)) or slow
    return _larger_s(tuned) if was_too_small and not tuned.best else tuned.budget_s


def _larger_s(tuned: TuneResult) -> float:
    """Return a larger budget in seconds: at least twice this budget, and at least the needed time."""
    return 60.0 * math.ceil(max(_LONGER * tuned.budget_s, _LONGER * tuned.wall_s, _needed_s(tuned)) / 60)


def _needed_s(tuned: TuneResult) -> float:
    """Return about how many seconds a search needs to decide the undecided change and to try the skipped changes.

    The width of a confidence interval is proportional to 1 / sqrt(measuring time).
    """
    known = [t.seconds for t in tuned.trials if t.speedup is not None and t.seconds > 0]
    usual_s = sum(known) / len(known) if known else _TRIAL_S
    most = _most_promising(tuned)
    more_s = (_longer(_gained(most, tuned)) - 1) * most.seconds if most is not None else 0.0
    untried = len(without_time(tuned.trials, tuned.allowed)) or int(tuned.out_of_budget and not known)
    return tuned.wall_s + more_s + usual_s * untried


def _longer(gained: Interval | None) -> float:
    """Return approximately by which factor a comparison must be longer to prove its gain."""
    if gained is None or gained.low <= 0 or gained.value <= _PROVEN:
        return _LONGER
    return min(_MOST_LONGER, max(1.0, (math.log(gained.value / gained.low) / math.log(gained.value / _PROVEN)) ** 2))


def _most_promising(tuned: TuneResult) -> Trial | None:
    """Return the undecided change with the largest gain so far, or None."""
    return max(_undecided(tuned), key=lambda t: g.value if (g := _gained(t, tuned)) is not None else 0.0, default=None)


def _undecided(tuned: TuneResult) -> list[Trial]:
    return [t for t in tuned.trials if t.status == "undecided" and _is_open(t, tuned)]


def _may_be_proposed(trial: Trial, allowed: Sequence[Safety]) -> bool:
    return trial.status == "skipped" and trial.safety not in allowed and trial.safety != "semantic"


def _expected(trial: Trial) -> float:
    """Return the geometric centre of the predicted interval of the gain, or 1 without a prediction."""
    return math.sqrt(trial.predicted.low * trial.predicted.high) if trial.predicted is not None else 1.0


def _longer_program(tuned: TuneResult) -> NextStep | None:
    """Return the advice for a program that ends before anything can be measured, or None."""
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


def _more_budget(tuned: TuneResult, program: str) -> NextStep | None:
    """Return the command with a larger budget; None if lack of time ended neither the search nor a comparison."""
    most = _most_promising(tuned)
    waiting = without_time(tuned.trials, tuned.allowed)
    if most is None and not waiting and (not tuned.out_of_budget or _allow(tuned, program) is not None):
        return None
    what = "the time budget was too small for a result" if tuned.out_of_budget else "too few measurements for a result"
    if most is not None:
        gained = _gained(most, tuned)
        assert gained is not None  # an undecided trial has a gain
        what += f"; {most.remedy} is undecided ({units.factor(gained.value)} so far)"
    elif waiting:
        what += f"; {len(waiting)} change{'s' * (len(waiting) != 1)} had no time"
    cores = _busy_cores(tuned)
    busy = f", and other programs used {cores}: run it when the machine is idle" if cores is not None else ""
    command = f"paceline tune{_allowed(tuned)}{_budget(_larger_s(tuned))} {program}"
    return NextStep(text=what + busy, command=command)


def _is_open(trial: Trial, tuned: TuneResult) -> bool:
    """Return whether an undecided trial is worth more time: its gain so far would be kept if it were certain."""
    gained, worth = _gained(trial, tuned), GOALS[tuned.goal].worth
    return gained is not None and gained.value >= worth


def _gained(trial: Trial, tuned: TuneResult) -> Interval | None:
    return trial.saving if GOALS[tuned.goal].aim == "memory" else trial.speedup


def _explain(tuned: TuneResult, program: str, searched: str) -> NextStep:
    """Return the command that explains the verdict, or that tries changes of which no speed-up is predicted.

    Args:
        tuned: The result of the search.
        program: The program and its arguments.
        searched: The same, after the options of the search.
    """
    for finding in tuned.before.findings:
        if finding.name == tuned.before.verdict and finding.severity != "info":
            text = f"none of the changes that paceline tune can try helps; see how to fix {finding.name} by hand"
            return NextStep(text=text, command=f"paceline explain {finding.code}")
    unknown = [t for t in tuned.trials if _may_be_proposed(t, tuned.allowed) and t.predicted is None]
    if unknown and GOALS[tuned.goal].aim == "time":
        safety = unknown[0].safety
        names = " and ".join(dict.fromkeys(t.remedy for t in unknown if t.safety == safety))
        text = f"try the {safety} changes {names}, whose speed-up cannot be predicted"
        command = f"paceline tune --allow {safety}{_budget(_enough_s(tuned))} {searched}"
        return NextStep(text=text, command=command)
    return NextStep(text="keep the program unchanged", command=f"paceline run {program}")


def _allowed(tuned: TuneResult) -> str:
    """Return the option with the allowed safety class, or an empty string for the default."""
    return f" --allow {tuned.allowed[-1]}" if tuned.allowed[-1] != "resampled" else ""


def _budget(seconds: float) -> str:
    """Return the option with a budget, in whole minutes if possible, or an empty string for the default."""
    if seconds == DEFAULT_BUDGET_S:
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f" --budget {minutes}m" if not rest else f" --budget {math.ceil(seconds)}s"
