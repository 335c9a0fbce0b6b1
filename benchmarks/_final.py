"""Is what was found as fast as the best there is, and still the same training? Bare, tuned and fastest cells, in turn.

All print their losses: the tuned program's are held against the bare one's, digit by digit where its recipe claims to
be exact. That is no check of `tune`'s own: nothing but what the programs print goes into it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _clocked import Clocked, bare, clocked, under
from _grid import Case
from _turns import in_turn

from paceline.core.recipe import BASELINE, Recipe, describe_recipe

_FLOOR = 1e-3  # of the loss: differences below are rounding, whatever the seeds
_LONGER = 2  # times the steps of a cell of the grid
_LEAST_S = 6.0  # of steps of a fast recipe: in less, how a run begins and what the machine does weigh too much
_MOST_TIMES = 10  # as many steps as the bare program, at most


def played(commands: Mapping[str, Sequence[str]], rounds: int, folder: Path) -> dict[str, list[Clocked]]:
    """Run some commands in turn, round after round with new processes, the order turning; return the runs of each.

    Raises:
        RunFailed: One of them failed.
    """
    found: dict[str, list[Clocked]] = {name: [] for name in commands}
    names = list(commands)
    for number in range(rounds):
        turn = number % len(names)
        together = in_turn({name: commands[name] for name in names[turn:] + names[:turn]}, folder)
        for name, run in together.items():
            found[name].append(run)
    return found


def contestants(
    case: Case, tuned: Recipe, finalists: Sequence[Recipe], changed: Path | None, folder: Path, fastest_s: float
) -> dict[str, list[str]]:
    """Return the commands to compare: `bare`, `tuned`, the finalists that are other recipes, and `train_doctor`.

    Args:
        case: The program.
        tuned: The recipe that was found.
        finalists: The fastest of the grid.
        changed: The program as another tool changed it, where it did.
        folder: Takes the recipes.
        fastest_s: Seconds of a step of the fastest cell.
    """
    steps = ["--steps", case.warmup + _LONGER * case.steps]
    longer = ["--steps", case.warmup + steps_of_a_recipe(case, fastest_s)]
    recipes = {"tuned": tuned, **{describe_recipe(one): one for one in finalists if one != tuned}}
    found = {"bare": bare(case.program, *steps)}
    for number, (name, recipe) in enumerate(recipes.items()):
        place = folder / str(number)
        place.mkdir()
        found[name] = under(recipe, place, case.program, *longer)
    return found if changed is None else {**found, "train_doctor": bare(changed, *steps)}


def steps_of_a_recipe(case: Case, step_s: float) -> int:
    """Return for how many steps recipes run, in whole cells of the grid: fast ones run longer."""
    cells = math.ceil(_LEAST_S / max(step_s, 1e-6) / case.steps)
    return case.steps * max(_LONGER, min(_LONGER * _MOST_TIMES, cells))


def figures(
    case: Case, finalists: Sequence[Recipe], runs: Mapping[str, Sequence[Clocked]]
) -> tuple[Recipe, dict[str, Any]]:
    """Return the fastest of the finalists, and what came out.

    That is seconds a step by name, the `gain` of the tuned program and of the grid's best over the bare one, and the
    share of the best one's speed that the tuned one `reached`; as medians of rounds, with their range.

    Raises:
        RunFailed: A program printed too little.
    """
    step_s = {name: [run.step_s(case.warmup) for run in some] for name, some in runs.items()}
    times = [step_s.get(describe_recipe(one), step_s["tuned"]) for one in finalists]  # the tuned one may be among them
    _, place = min((ratio(each, step_s["tuned"])["median"], place) for place, each in enumerate(times))
    return finalists[place], {
        "step_s": step_s,
        "gain": ratio(step_s["bare"], step_s["tuned"]),
        "best_gain": ratio(step_s["bare"], times[place]),
        "reached": ratio(times[place], step_s["tuned"]),
    }


def ratio(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Return the median over rounds of one over the other, and the range."""
    ratios = [a / b for a, b in zip(one, other)]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def safety_of(recipe: Recipe, trials: Sequence[Mapping[str, Any]]) -> str:
    """Return the boldest class of what was kept; an empty recipe is exact."""
    kept = {trial["safety"] for trial in trials if trial["status"] == "kept"} if recipe != BASELINE else set()
    return next((safety for safety in ("semantic", "numeric") if safety in kept), "exact")


def invariants(case: Case, safety: str, runs: Mapping[str, Sequence[Clocked]], folder: Path) -> dict[str, Any]:
    """Compare the losses that the tuned program prints with those that the bare one prints.

    Raises:
        RunFailed: The bare program failed under another seed.
    """
    wanted = runs["bare"][0].losses
    got = {step: loss for step, loss in runs["tuned"][0].losses.items() if step <= max(wanted)}  # it may run on
    if safety == "exact":
        repeats = all(run.losses == wanted for run in runs["bare"])
        return {"class": safety, **same_digits(wanted, got, repeats=repeats)}
    steps = max(wanted)
    other = clocked(bare(case.program, "--steps", steps, "--seed", 1), folder).losses
    return {"class": safety, **within_scatter(wanted, got, other)}


def same_digits(wanted: Mapping[int, str], got: Mapping[int, str], *, repeats: bool) -> dict[str, Any]:
    """Say whether all printed losses are the same to the last digit."""
    if not repeats:
        return {"held": None, "text": "the bare program prints other losses each time: nothing can be compared"}
    apart = [step for step in sorted(wanted.keys() | got.keys()) if wanted.get(step) != got.get(step)]
    if apart:
        return {"held": False, "text": f"{len(apart)} of {len(wanted)} losses are others, the first at step {apart[0]}"}
    return {"held": True, "text": f"{len(wanted)} losses are the same to the last digit"}


def within_scatter(wanted: Mapping[int, str], got: Mapping[int, str], other: Mapping[int, str]) -> dict[str, Any]:
    """Say whether losses differ by no more than those of two seeds do, in the second half of the steps."""
    if wanted.keys() != got.keys():
        return {"held": False, "text": f"{len(got)} losses were printed, {len(wanted)} by the bare program"}
    late = sorted(wanted)[len(wanted) // 2 :]
    level = statistics.fmean(abs(float(wanted[step])) for step in late)
    apart = statistics.fmean(abs(float(wanted[step]) - float(got[step])) for step in late)
    seeds = statistics.fmean(abs(float(wanted[step]) - float(other[step])) for step in late)
    allowed = max(seeds, _FLOOR * level)
    text = f"losses differ by {apart:.2g} on average over {len(late)} lines; {allowed:.2g} is allowed"
    return {"held": apart <= allowed, "text": text}
