"""What does the comparison of ranks of `run --layout` cost, as a share of a step?

    python benchmarks/drift.py

Three programs of one process train on two ranks (gloo, one thread each) for 264 steps, with `dp=2` and with `shard=2`.
The benchmark measures the time of each step, and how much of it the comparison takes: to compute digests, to exchange
them, and to note the step. The first eight steps do not count, because the ranks compare in each of them. In the other
256 steps, the ranks compare all weights four times. With `shard`, each rank also checks its own shards between steps,
as often as its limit of time allows. The benchmark takes about two minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _machine import about

HERE = Path(__file__).parent
SCHEMA = "paceline.benchmark.drift/1"
PROGRAMS = ("text", "pictures", "table")
LAYOUTS = ("dp=2", "shard=2")
FIRST, EVERY = 8, 64  # steps


def measured(program: str, layout: str) -> dict:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_HISTORY": "off"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "run", "--dir", f"{folder}/runs", "--layout", layout]
        command += [str(HERE / "_drift_program.py"), program, folder]
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{program} with {layout}: {done.stderr[-1000:]}")
        found = json.loads(next(Path(folder).glob("rank*.json")).read_text())
    return {"program": program, "layout": layout, "parameters": found["parameters"], **summed_up(found["rows"])}


def summed_up(rows: list[list[float]]) -> dict:
    steady = rows[FIRST:]
    due = [spent for number, (_, spent) in enumerate(rows, 1) if number > FIRST and not number % EVERY]
    return {
        "steps": len(steady),
        "step_ms": 1e3 * statistics.median(seconds for seconds, _ in steady),
        "share": sum(spent for _, spent in steady) / sum(seconds for seconds, _ in steady),
        "due_ms": 1e3 * statistics.median(due),
        "other_us": 1e6 * statistics.median(spent for _, spent in steady),
    }


def main() -> int:
    machine = about(["torch", "paceline"])
    found = [measured(program, layout) for program in PROGRAMS for layout in LAYOUTS]
    out = HERE / "results" / f"drift-{machine['date']}.json"
    out.write_text(json.dumps({"schema": SCHEMA, **machine, "cases": found}, indent=1) + "\n")
    print("| program | parameters | layout | step | comparison, of all steps | at a 64th step | at other steps |")
    print("|---|---|---|---|---|---|---|")
    for one in found:
        print(
            f"| {one['program']} | {one['parameters']:,} | {one['layout']} | {one['step_ms']:.1f} ms "
            f"| {one['share']:.3%} | {one['due_ms']:.2f} ms | {one['other_us']:.0f} µs |"
        )
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
