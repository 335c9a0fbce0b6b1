"""Does the comparison of the first step find planted faults, leave ordinary models alone, and cost little?

    python benchmarks/first_step.py

Two ranks of this machine (gloo). Faults: wrong reshapes, missing and double reductions, wrong scaling, other data, in
models, plans, losses, inputs and the engine. All must be refused. Ordinary models must train. The cost is what the
first step takes longer with the comparison, as a multiple of a later step, for a GPT of 1.3M parameters: the median of
seven turns and their range.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from _machine import about

HERE = Path(__file__).parent
SCHEMA = "paceline.benchmark.first_step/1"


def on_ranks() -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        subprocess.run([*launcher, str(HERE / "_first_step_ranks.py"), str(result)], check=True, env=environment)
        return json.loads(result.read_text())


def main() -> int:
    machine = about(["torch", "paceline"])
    found = on_ranks()
    ordinary = [case for case in found if case["kind"] == "ordinary"]
    costs = {case["layout"]: case for case in found if case["kind"] == "cost"}
    faults = [case for case in found if case["kind"] not in ("ordinary", "cost")]
    missed = [f"{case['name']} ({case['layout']})" for case in faults if "refused" not in case]
    alarms = [f"{case['name']} ({case['layout']})" for case in ordinary if "seconds" not in case]
    kinds = Counter(case["kind"] for case in faults)
    summary = {
        "faults": len(faults),
        "by_kind": dict(kinds),
        "missed": missed,
        "ordinary": len(ordinary),
        "ordinary_models": len({case["name"] for case in ordinary}),
        "false_alarms": alarms,
        "cost_steps": {layout: case["cost_steps"] for layout, case in costs.items()},
    }
    out = HERE / "results" / f"first_step-{machine['date']}.json"
    out.write_text(json.dumps({"schema": SCHEMA, **machine, **summary, "cases": found}, indent=1) + "\n")
    print(f"{len(faults) - len(missed)} of {len(faults)} faults found; missed: {', '.join(missed) or 'none'}")
    print(f"{len(ordinary)} runs of ordinary models; false alarms: {', '.join(alarms) or 'none'}")
    for layout, case in costs.items():
        low, high = min(case["turns"]), max(case["turns"])
        print(f"{layout}: the comparison takes {case['cost_steps']:.2f} steps ({low:.2f} to {high:.2f})")
    print(f"written: {out}")
    return 1 if missed or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
