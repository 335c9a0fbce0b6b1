"""Does `paceline tune` find what an exhaustive grid finds, at a quarter of its cost, and is it still the same training?

    python benchmarks/tune.py [--resume] [--train-doctor PYTHON] [NAME ...]
    python benchmarks/tune.py --again                                   # close rows are compared once more
    python benchmarks/tune.py --quick NAME                              # a look at whether it works; nothing is kept

For each program of ``tune_programs``, none of which knows of Paceline:

1. Every cell of its grid (``tune_programs/programs.toml``) runs for so many steps beside a run without it, both under
   ``paceline run --recipe``, timed by a clock on the lines that the program prints.
2. ``paceline tune`` searches on its own, without a step limit; its budget is 23% of what the grid took.
3. The program as it is, the tuned one and the grid's two fastest run in turn: `reached` is the seconds a step of the
   faster of these two over the tuned one's, `gain` the bare one's over the tuned one's, as medians of rounds. `cost` is
   the wall time of 2 over that of 1. Where `reached` is within 5% of the 95% asked for, and not all rounds are on
   one side of that, up to three times as many are played.
4. The losses that the tuned program prints are held against the bare one's.

A machine with nothing else to do is needed: about seven minutes a program. Each row is written as soon as it is done;
``--resume`` goes on where an earlier run was ended. Exit code: 0 when all that was asked for holds, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from _clocked import Clocked, RunFailed, tuned
from _final import contestants, figures, invariants, played, ratio, safety_of
from _grid import Case, Cell, finalists, measured, read_cases
from _machine import about, stolen_s
from _train_doctor import Treated, treated
from _tune_table import ASKED, markdown, passed, sentences, summary

from paceline.core.recipe import Recipe

RESULTS = Path(__file__).parent / "results"
SCHEMA = "paceline.benchmark.tune/1"
_LEAST_BUDGET_S = 30.0
_OF_GRID = 0.23  # a search ends somewhat after its budget: the last trial is finished
_QUICK_CELLS = 2
ROUNDS = 3
_MOST_TIMES = 3  # as many rounds, where it is close
_CLOSE = 0.05


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    cases = read_cases()
    unknown = [name for name in options.names if name not in cases]
    if unknown:
        raise SystemExit(f"no program {', '.join(unknown)}; there are {', '.join(cases)}")
    chosen = [case for name, case in cases.items() if not options.names or name in options.names]
    if options.quick:
        options.out, options.rounds, chosen = Path(tempfile.mkdtemp()), 1, [quick(case) for case in chosen]
    return compared(chosen, options)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("names", nargs="*", metavar="NAME", help="only these programs")
    found.add_argument("--budget", type=float, metavar="S", help="of a search; default: 23%% of the grid's time")
    found.add_argument("--rounds", type=int, default=ROUNDS, help="of the last comparison (3)")
    found.add_argument("--train-doctor", metavar="PYTHON", help="a Python that has train-doctor 0.2.0, to be compared")
    found.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (benchmarks/results)")
    found.add_argument("--resume", action="store_true", help="go on in the newest results there")
    found.add_argument("--again", action="store_true", help="compare rows that are close once more, with more rounds")
    found.add_argument("--quick", action="store_true", help="few cells, few steps, one round; figures mean nothing")
    return found


def quick(case: Case) -> Case:
    """Return a case that takes a minute and shows that all of it works."""
    return replace(case, steps=max(20, case.steps // 20 * 5), cells=case.cells[1 : 1 + _QUICK_CELLS])


def compared(cases: list[Case], options: argparse.Namespace) -> int:
    """Make a row for each program that has none yet, print and write; return the exit code."""
    file, result = begun(options)
    for case in cases:
        before = result["programs"].get(case.name)
        if before is not None and not (options.again and "reached" in before and is_close(before)):
            continue
        with tempfile.TemporaryDirectory(prefix="tune-benchmark-") as folder:
            place = Path(folder)
            made = guarded(case, options, place) if before is None else again(case, before, options, place)
            result["programs"][case.name] = made
        result["summary"] = summary(result["programs"])
        written(file, json.dumps(result, indent=1) + "\n")
        written(file.with_suffix(".md"), markdown(result))
    asked = summary(result["programs"])
    print("\n".join([*sentences(asked), f"written: {file} and {file.with_suffix('.md').name}"]))
    return 0 if passed(asked) else 1


def begun(options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Return the file of the results and what is in it, which is nothing unless it is to go on.

    Raises:
        SystemExit: What is to go on was measured elsewhere, or with other versions.
    """
    here = about(("torch", "paceline"))
    result: dict[str, Any] = {"schema": SCHEMA, **here, "rounds": options.rounds, "programs": {}}
    options.out.mkdir(parents=True, exist_ok=True)
    files = sorted(options.out.glob("tune-[0-9]*.json")) if options.resume or options.again else []
    if not files:
        return options.out / f"tune-{here['date']}.json", result
    before = json.loads(files[-1].read_text())
    for key in ("device", "python", "versions", "rounds"):
        if before[key] != result[key]:
            raise SystemExit(f"{files[-1]} has {key} {before[key]}, here it is {result[key]}: leave --resume out")
    return files[-1], before


def written(file: Path, text: str) -> None:
    """Write a file whole, or not at all."""
    made = file.with_name(f".{file.name}")
    made.write_text(text)
    os.replace(made, file)


def guarded(case: Case, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the row of a program; where it could not be made, why."""
    try:
        return row(case, options, folder, lambda text: print(text, file=sys.stderr, flush=True))
    except RunFailed as error:
        return {"bottleneck": case.bottleneck, "failed": str(error)}


def row(case: Case, options: argparse.Namespace, folder: Path, told: Callable[[str], None]) -> dict[str, Any]:
    """Search the grid, tune, compare what both found, and check that training is still the same.

    Raises:
        RunFailed: One of it failed.
    """
    begun_s, load, stolen = time.monotonic(), os.getloadavg()[0], stolen_s()
    for part in ("grid", "tune", "final", "train-doctor"):
        (folder / part).mkdir()
    cells, grid_s = measured(case, folder / "grid", told)
    budget_s = options.budget or max(_LEAST_BUDGET_S, _OF_GRID * grid_s)
    told(f"{case.name}: tuning for {budget_s:.0f} s")
    found, tune_s = tuned([case.program], folder / "tune", budget_s, case.allow)
    recipe, fastest = found["best"]["recipe"], finalists(cells)
    doctor = options.train_doctor
    other = treated(doctor, case.program, folder / "train-doctor") if doctor else None
    told(f"{case.name}: comparing")
    fastest_s = min((cell.step_s for cell in cells if cell.step_s), default=1.0)
    commands = contestants(case, recipe, fastest, other.changed if other else None, folder / "final", fastest_s)
    runs, best, last = decided(case, fastest, commands, options.rounds, folder / "final")
    same = invariants(case, safety_of(recipe, found["trials"]), runs, folder / "final")
    return {
        "bottleneck": case.bottleneck,
        "allow": case.allow,
        "grid": {
            "wall_s": grid_s,
            "best": best,
            "cells": [asdict(cell) for cell in cells],
        },
        "tune": {"wall_s": tune_s, "budget_s": budget_s, "recipe": recipe, **searched(found)},
        **last,
        "cost": tune_s / grid_s,
        "invariants": same,
        "kept": [kept(trial) for trial in found["trials"] if trial["status"] == "kept"],
        "train_doctor": other_tool(other, last["step_s"]) if other else None,
        "load": load,  # of the machine at the start: above a half, somebody else was at work
        "stolen_cores": (stolen_s() - stolen) / (time.monotonic() - begun_s),  # that other guests took, on average
        "wall_s": time.monotonic() - begun_s,
    }


def decided(
    case: Case, fastest: Sequence[Recipe], commands: Mapping[str, Sequence[str]], rounds: int, folder: Path
) -> tuple[dict[str, list[Clocked]], Recipe, dict[str, Any]]:
    """Play the last comparison, longer where it is close to what was asked for; return runs, best cell and figures."""
    runs: dict[str, list[Clocked]] = {name: [] for name in commands}
    for _ in range(_MOST_TIMES):
        for name, some in played(commands, rounds, folder).items():
            runs[name] += some
        best, last = figures(case, fastest, runs)
        if not is_close(last):
            break
    return runs, best, last


def is_close(row: Mapping[str, Any]) -> bool:
    """Say whether so few rounds cannot tell on which side of what was asked for a recipe is."""
    few, reached = len(row["step_s"]["bare"]) < _MOST_TIMES * ROUNDS, row["reached"]
    undecided = reached["low"] < ASKED["reached"] < reached["high"]
    return few and undecided and abs(reached["median"] - ASKED["reached"]) < _CLOSE


def again(case: Case, before: dict[str, Any], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return a row with its last comparison made anew, of the same recipes; what the other tool gained stays."""
    (folder / "final").mkdir()
    cells = [Cell(**cell) for cell in before["grid"]["cells"]]
    fastest_s = min((cell.step_s for cell in cells if cell.step_s), default=1.0)
    recipe, fastest = before["tune"]["recipe"], finalists(cells)
    commands = contestants(case, recipe, fastest, None, folder / "final", fastest_s)
    runs, best, last = decided(case, fastest, commands, options.rounds, folder / "final")
    same = invariants(case, before["invariants"]["class"], runs, folder / "final")
    return {**before, "grid": {**before["grid"], "best": best}, **last, "invariants": same}


def searched(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a search tells of itself, in short."""
    trials = [
        {key: trial[key] for key in ("remedy", "recipe", "predicted", "speedup", "status", "reason", "seconds")}
        for trial in found["trials"]
    ]
    return {"stopped": found["stopped"], "speedup": found["best"]["speedup"], "trials": trials}


def other_tool(found: Treated, step_s: dict[str, list[float]]) -> dict[str, Any]:
    """Return what the other tool says, and what its change gains where it made one."""
    gain = ratio(step_s["bare"], step_s["train_doctor"]) if found.changed else None
    return {"said": found.said, "wall_s": found.wall_s, "gain": gain}


def kept(trial: dict[str, Any]) -> dict[str, Any]:
    """Return what was predicted and achieved of a kept change."""
    return {
        "remedy": trial["remedy"],
        "predicted": trial["predicted"],
        "achieved": trial["speedup"]["median"],
        "inside": trial["as_predicted"],
    }


if __name__ == "__main__":
    sys.exit(main())
