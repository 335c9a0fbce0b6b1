"""What does a step take under the engine, beside a loop by hand, Accelerate and Lightning Fabric?

    python benchmarks/engine.py [--python PYTHON] [--rounds N] [--steps N]

The same small GPT, batches, AdamW, clipping and two micro-batches a step, on one rank and on two (gloo), on this
machine's CPU with one thread a rank. Loops take turns in one process, some steps at a time, each round beginning with
another one; shown is the median over rounds of a loop's time divided by that of the loop by hand in the same round. How
far parameters are from those of the loop by hand at the end is written down. `PYTHON` has torch,
and `accelerate` and `lightning_fabric` where they are to be measured.
What is written down are medians, counts and quartiles.
Asked for is a loop within 1% of the one by hand, in wall time and CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _machine import about, stolen_s

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCHEMA = "paceline.benchmark.engine/1"
ASKED = 1.01
CLOCKS = ("wall_s", "cpu_s")


def measured(python: str, ranks: int, rounds: int, steps: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        subprocess.run(
            [python, *launcher, str(HERE / "_engine_ranks.py"), str(rounds), str(steps), str(result)],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return json.loads(result.read_text())


def ratios(times: dict, name: str, clock: str) -> list[float]:
    """A loop's time by that of the loop by hand, round by round."""
    return [own[clock] / hand[clock] for own, hand in zip(times[name], times["by hand"], strict=True)]


def summary(times: dict) -> dict:
    found = {}
    for name, own in times.items():
        found[name] = {clock: statistics.median(one[clock] for one in own) for clock in CLOCKS}
        for clock in CLOCKS:
            values = sorted(ratios(times, name, clock))
            quarter = len(values) // 4
            found[name][f"{clock}_ratio"] = statistics.median(values)
            found[name][f"{clock}_ratio_quartiles"] = [values[quarter], values[-1 - quarter]]
    return found


def compact(found: dict) -> dict:
    """What is written down of what ranks found: medians over rounds, how many, and how far they spread."""
    rounds = len(found["times"]["by hand"])
    return {"rounds": rounds, "parameter_difference": found["parameter_difference"], "summary": summary(found["times"])}


def shown(name: str, one: dict) -> str:
    parts = []
    for clock, word in (("wall_s", "wall"), ("cpu_s", "CPU")):
        low, high = one[f"{clock}_ratio_quartiles"]
        ratio = one[f"{clock}_ratio"]
        parts.append(f"{word} {1e3 * one[clock]:.2f} ms a step, {ratio:.3f} of by hand ({low:.3f} to {high:.3f})")
    return f"  {name:18} {'; '.join(parts)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    machine, stolen, results = about(["torch", "paceline"]), stolen_s(), {}
    for ranks in (1, 2):
        found = measured(given.python, ranks, given.rounds, given.steps)
        results[str(ranks)] = compact(found)
        print(f"{ranks} rank{'s' if ranks > 1 else ''}, {given.rounds} rounds of {given.steps} steps:")
        for name, one in results[str(ranks)]["summary"].items():
            print(shown(name, one))
        print(f"  parameters differ from by hand by at most {max(found['parameter_difference'].values()):.1e}")
    within = all(one["summary"]["engine"][f"{clock}_ratio"] <= ASKED for one in results.values() for clock in CLOCKS)
    out = RESULTS / f"engine-{machine['date']}.json"
    held = {"rounds": given.rounds, "steps": given.steps, "stolen_s": stolen_s() - stolen, "within_1_percent": within}
    out.write_text(json.dumps({"schema": SCHEMA, **machine, **held, "ranks": results}, indent=1) + "\n")
    print(f"the engine is {'within' if within else 'NOT within'} 1% of the loop by hand; written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
