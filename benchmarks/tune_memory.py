"""How much less memory does `paceline tune --goal memory` need, what does it cost, and is it still the same training?

    python benchmarks/tune_memory.py [--json FILE] [NAME ...]

Each program of ``memory_programs`` is tuned without a step limit; then it runs as it is and under the recipe, in turn,
each in a process of its own. Memory is the most that the process had resident, as the kernel tells its parent; time is
by a clock on the lines that the program prints. Losses are held against those of the program as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _clocked import LINE, bare, called, tuned, under
from _machine import about

PROGRAMS = Path(__file__).parent / "memory_programs"
RESULTS = Path(__file__).parent / "results"
SCHEMA = "paceline.benchmark.tune-memory/1"
BUDGET_S, ROUNDS, STEPS, WARMUP = 90.0, 3, 8, 2
# Runs a command, and tells after its lines how much of it was resident at most, and when each line came.
CHILD = """
import json, resource, subprocess, sys, time
lines = []
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
for line in process.stdout:
    lines.append([time.monotonic(), line])
code = process.wait()
peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps({"code": code, "lines": lines, "peak_bytes": peak}))
"""


def main() -> int:
    names = sorted(path.stem for path in PROGRAMS.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    record: dict[str, Any] = {"schema": SCHEMA, **about(("torch", "paceline")), "programs": {}}
    for name in options.names or names:
        with tempfile.TemporaryDirectory(prefix="tune-memory-") as folder:
            record["programs"][name] = row(PROGRAMS / f"{name}.py", Path(folder))
        print(told(name, record["programs"][name]), flush=True)
    out = options.json or RESULTS / f"tune-memory-{record['date']}.json"
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {out}")
    return 0 if all(each["same_losses"] for each in record["programs"].values()) else 1


def row(program: Path, folder: Path) -> dict[str, Any]:
    found, tune_s = tuned([program], folder, BUDGET_S, "numeric", "--goal", "memory")
    recipe = found["best"]["recipe"]
    commands = {"bare": bare(program, "--steps", STEPS), "tuned": under(recipe, folder, program, "--steps", STEPS)}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(ROUNDS):
        for name in list(commands)[:: 1 if number % 2 else -1]:
            runs[name].append(ran(commands[name], folder))
    losses = {name: [each["losses"] for each in some] for name, some in runs.items()}
    return {
        "recipe": recipe,
        "tune_s": tune_s,
        "checks": found["best"]["checks"],
        "peak_bytes": {name: [each["peak_bytes"] for each in some] for name, some in runs.items()},
        "step_s": {name: [each["step_s"] for each in some] for name, some in runs.items()},
        "less_memory": ratios(runs, "peak_bytes"),
        "slower": ratios(runs, "step_s", over="bare"),
        "same_losses": alike(losses["bare"][0], losses["tuned"][0]),
        "same_digits": losses["bare"][0] == losses["tuned"][0],
    }


def ran(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return seconds of a step, the most that was resident, and the losses."""
    done, _ = called([sys.executable, "-c", CHILD, *command], folder, 300.0)
    told_by_child = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"code": done.returncode}
    if told_by_child["code"]:
        raise SystemExit(f"{' '.join(command)} ended with {told_by_child['code']}: {done.stderr[-800:]}")
    marks = [(at, match[2]) for at, line in told_by_child["lines"] if (match := LINE.match(line))]
    steps = [later - at for (at, _), (later, _) in zip(marks[WARMUP:], marks[WARMUP + 1 :])]
    return {
        "step_s": statistics.median(steps),
        "peak_bytes": told_by_child["peak_bytes"],
        "losses": [loss for _, loss in marks],
    }


def ratios(runs: dict[str, list[dict[str, Any]]], key: str, over: str = "tuned") -> dict[str, float]:
    """Return one over the other by rounds: median and range."""
    one, other = ("bare", "tuned") if over == "tuned" else ("tuned", "bare")
    found = [a[key] / b[key] for a, b in zip(runs[one], runs[other])]
    return {"median": statistics.median(found), "low": min(found), "high": max(found)}


def alike(wanted: Sequence[str], got: Sequence[str]) -> bool:
    """Say whether losses are the same but for the order in which numbers are added."""
    pairs = list(zip(map(float, wanted), map(float, got), strict=True))
    return all(abs(a - b) <= 1e-4 * abs(a) for a, b in pairs)


def told(name: str, row: dict[str, Any]) -> str:
    less, slower = row["less_memory"], row["slower"]
    held = " to ".join(f"{statistics.median(row['peak_bytes'][each]) / 2**20:.0f}" for each in ("bare", "tuned"))
    same = "to the digit" if row["same_digits"] else "to rounding" if row["same_losses"] else "NO"
    return (
        f"{name:18} {held} MiB, {less['median']:.2f}x less ({less['low']:.2f} to {less['high']:.2f}); a step "
        f"{slower['median']:.2f}x as long ({slower['low']:.2f} to {slower['high']:.2f}); same losses {same}; "
        f"{row['recipe']}"
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
