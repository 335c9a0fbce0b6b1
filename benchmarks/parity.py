"""Do all layouts train the same model as one process, and what does a rank hold?

    python benchmarks/parity.py [--ranks 2 4 8] [--steps N]

Every axis and allowed pair, and dp x tp x pp, on processes of this machine (gloo): 20 steps of a small GPT in fp32,
against a loop written by hand on torch alone that takes the whole batch at once. Written down are the largest
differences of losses, of norms before clipping and of parameters put together from the checkpoint, and the bytes of
parameters and optimizer state of the rank that has most. Asked for are losses within 1e-5. Where a case has `from`, it
went on from half of the steps of another layout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import about

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCHEMA = "paceline.benchmark.parity/1"
ASKED = 1e-5
FOUR, EIGHT = {"micro_batches": 4}, {"micro_batches": 8}


def schedules(layout: str, memory: dict) -> list[dict]:
    names = ("gpipe", "1f1b", "interleaved", "zero-bubble")
    return [{"recipe": {"layout": layout, "memory": memory, "pipeline": {"schedule": name}}} for name in names]


CASES: dict[int, list[dict[str, Any]]] = {
    2: [
        {"recipe": {"layout": "dp=2"}},
        {"recipe": {"layout": "dp=2", "memory": FOUR}, "ragged": True},
        {"recipe": {"layout": "shard=2"}},
        {"recipe": {"layout": "shard=2", "memory": {**FOUR, "activation_budget": 0.5}}, "ragged": True},
        {"recipe": {"layout": "tp=2"}},
        {"recipe": {"layout": "tp=2", "memory": {"selective": True}}},
        {"recipe": {"layout": "tp=2"}, "plan": True},
        {"recipe": {"layout": "cp=2"}},
        *schedules("pp=2", FOUR),
        {"recipe": {"layout": "pp=2", "memory": FOUR}, "ragged": True},
    ],
    4: [
        {"recipe": {"layout": "dp=4"}},
        {"recipe": {"layout": "shard=4", "memory": {**FOUR, "checkpoint_every": 1}}},
        {"recipe": {"layout": "tp=4"}},
        {"recipe": {"layout": "cp=4", "memory": {"checkpoint_every": 1}}, "ragged": True},
        *schedules("pp=4", EIGHT),
        {"recipe": {"layout": "dp=2,shard=2"}},
        {"recipe": {"layout": "dp=2,tp=2", "memory": {"micro_batches": 2}}},
        {"recipe": {"layout": "dp=2,pp=2", "memory": FOUR}},
        {"recipe": {"layout": "dp=2,cp=2"}, "ragged": True},
        {"recipe": {"layout": "shard=2,tp=2"}},
        {"recipe": {"layout": "shard=2,pp=2", "memory": FOUR}},
        {"recipe": {"layout": "shard=2,cp=2"}, "ragged": True},
        {"recipe": {"layout": "tp=2,pp=2", "memory": FOUR}},
        {"recipe": {"layout": "shard=4"}, "from": 15},
        {"recipe": {"layout": "dp=4"}, "from": 12},
        {"recipe": {"layout": "pp=4", "memory": EIGHT, "pipeline": {"schedule": "interleaved"}}, "from": 2},
    ],
    8: [
        {"recipe": {"layout": "dp=8"}},
        {"recipe": {"layout": "shard=8"}},
        {"recipe": {"layout": "pp=8", "memory": EIGHT}},
        {"recipe": {"layout": "dp=2,tp=2,pp=2", "memory": FOUR}, "ragged": True},
        {"recipe": {"layout": "shard=2,tp=2,pp=2", "memory": FOUR}},
        {"recipe": {"layout": "dp=2,shard=2,tp=2"}},
        {"recipe": {"layout": "dp=2,shard=2,pp=2", "memory": FOUR}},
        {"recipe": {"layout": "dp=2,shard=2,cp=2"}, "ragged": True},
        {"recipe": {"layout": "dp=2,shard=4"}, "from": 3, "ragged": True},
    ],
}


def on_ranks(ranks: int, steps: int) -> list[dict]:
    """Train all cases of a number of ranks in one start of them."""
    with tempfile.TemporaryDirectory() as folder:
        work, result = Path(folder) / "work.json", Path(folder) / "result.json"
        work.write_text(json.dumps({"steps": steps, "cases": CASES[ranks]}))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        subprocess.run(
            [*launcher, str(HERE / "_parity_ranks.py"), str(work), str(result)],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return json.loads(result.read_text())


def shown(case: dict) -> str:
    return (
        f"{case['recipe']['layout']:18} loss {case['loss_difference']:.1e}  norm {case['norm_difference']:.1e}  "
        f"parameters {case['parameter_difference']:.1e}  held {case['state_bytes']:,} bytes  {case['recipe']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    machine = about(["torch", "paceline"])
    cases = []
    for ranks in given.ranks:
        found = on_ranks(ranks, given.steps)
        cases += [{"ranks": ranks, **case} for case in found]
        print(*map(shown, found), sep="\n", flush=True)
    held = all(case["loss_difference"] <= ASKED for case in cases)
    out = RESULTS / f"parity-{machine['date']}.json"
    out.write_text(
        json.dumps({"schema": SCHEMA, **machine, "steps": given.steps, "held": held, "cases": cases}, indent=1) + "\n"
    )
    print(f"losses within {ASKED:g} of one process: {'all' if held else 'NOT all'} of {len(cases)}; written: {out}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
