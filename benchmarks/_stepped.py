"""Run a training program as it is, and note when its steps end, what its process holds, and how fast the machine is.

    python benchmarks/_stepped.py OUT.json PROGRAM [ARGS]...

After the first steps, when the peak has been read, a profile's reference (a product of two 512 x 512 fp32 matrices)
is measured after every fourth step; steps' times do not hold it. Each rank writes OUT.json with its number behind.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from statistics import median

WARM, EVERY, TIMES = 12, 4, 5


def main() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    out, program = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ.get("RANK", "0"))
    seen = {"step_s": [], "reference_s": [], "peak_bytes": None}
    state = {"steps": 0, "at": None, "matrices": None}

    def after_step(*_: object) -> None:
        now = time.perf_counter()
        state["steps"] += 1
        if state["at"] is not None and state["steps"] > WARM:
            seen["step_s"].append(now - state["at"])
        if state["steps"] == WARM:
            seen["peak_bytes"] = peak_bytes()
        if state["steps"] > WARM and state["steps"] % EVERY == 0:
            state["matrices"] = state["matrices"] or (torch.rand(512, 512), torch.rand(512, 512))
            seen["reference_s"].append(reference_s(*state["matrices"]))
        state["at"] = time.perf_counter()

    register_optimizer_step_post_hook(after_step)
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(program).resolve().parent))
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        out.with_name(f"{out.name}.{rank}").write_text(json.dumps(seen))


def reference_s(left, right) -> float:
    taken = []
    for _ in range(TIMES):
        at = time.perf_counter()
        left @ right
        taken.append(time.perf_counter() - at)
    return median(taken)


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
