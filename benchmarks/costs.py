"""What does each mode cost and save for the GPT of `examples/gpt.py`: time, bytes sent, memory, beside its formula?

    python benchmarks/costs.py [--rounds N]

Each case is a recipe of the engine, on one rank or two (gloo, one thread a rank, this machine's CPU), with the same
batch. They take turns, two steps at a time, with a loop by hand on one process that has the whole batch; times are
shares of that loop's in the same round: medians with quartiles. A share of 0.5 on two ranks would be perfect; what is
above it is the exchange, the waiting and, where ranks are more than free cores, each other.

    sent     bytes that the rank that sends most writes to others in a step, as the kernel counts them; formulas are for
             rings, n = 2. gloo's reduce-scatter sends as much as an all-reduce, twice what a ring does: `shard` and
             `cp` send more here than with NCCL
    kept     parameters, gradients and AdamW's state in fp32 of the rank that has most, 16 bytes a parameter, and what
             replicas that do not step together have beside it
    peak     most bytes that forward and backward had beside that: activations and what is worked with

Figures are for the CPU and gloo; on GPUs links and kernels are others, what is kept and sent is the same. Thirty rounds
take about six minutes. The table is printed as Markdown, formulas in brackets.
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

from _costs_ranks import BATCH, DEPTH, LENGTH, WIDTH, model
from _machine import about, stolen_s

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCHEMA = "paceline.benchmark.costs/1"
STEPS, WARM, PARTS, EVERY, STALE = 2, 6, 4, 4, 4  # PowerSGD begins with step 10: 12 steps are not counted
ACTIVATIONS = BATCH * LENGTH * WIDTH * 4  # bytes of what is between two layers

ALONE = {
    "fp32": {},
    "bf16": {"precision": {"autocast": "bf16"}},
    "4 parts": {"memory": {"micro_batches": PARTS}},
    "activations: selective": {"memory": {"selective": True}},
    "activations: half": {"memory": {"activation_budget": 0.5}},
    "activations: full": {"memory": {"checkpoint_every": 1}},
}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
TWO = {
    "dp=2": {"layout": "dp=2"},
    "dp=2, fp16 sent": {"layout": "dp=2", "ddp": {"comm_hook": "fp16"}},
    "dp=2, powersgd": {"layout": "dp=2", "ddp": {"comm_hook": "powersgd", "bucket_cap_mb": 16}},
    f"dp=2, local every {EVERY}": {"layout": "dp=2", "local": {"every": EVERY}},
    "shard=2": {"layout": "shard=2"},
    "shard=2, bf16": {"layout": "shard=2", "precision": {"autocast": "bf16"}},
    "tp=2": {"layout": "tp=2"},
    "cp=2": {"layout": "cp=2"},
    **{
        f"pp=2, {name}": {"layout": "pp=2", "memory": {"micro_batches": PARTS}, "pipeline": {"schedule": name}}
        for name in SCHEDULES
    },
}
APART = {f"dp=2, asynchronous {STALE}": {"layout": "dp=2", "asynchronous": {"max_staleness": STALE}}}


def measured(ranks: int, cases: dict[str, dict], rounds: int) -> dict[str, dict]:
    work = {"recipes": list(cases.values()), "rounds": rounds, "steps": STEPS, "warm": WARM}
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "work.json", Path(folder) / "result.json"
        given.write_text(json.dumps(work))
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        subprocess.run(
            [sys.executable, *launcher, str(HERE / "_costs_ranks.py"), str(given), str(result)],
            check=True,
            stdout=subprocess.DEVNULL,  # the profiler talks
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        found = json.loads(result.read_text())
    rows = zip(cases, found["cases"], found["memory"], strict=True)
    return {name: summed_up(ranks, own, found["by_hand"], memory) for name, own, memory in rows}


def summed_up(ranks: int, own: list[dict], hand: list[dict], memory: dict) -> dict:
    made: dict = {"ranks": ranks, "rounds": len(own), **memory}
    for clock in ("wall_s", "cpu_s"):
        shares = sorted(one[clock] / other[clock] for one, other in zip(own, hand, strict=True))
        quarter = len(shares) // 4
        made[f"{clock[:-2]}_share"] = round(statistics.median(shares), 3)
        made[f"{clock[:-2]}_share_quartiles"] = [round(shares[quarter], 3), round(shares[-1 - quarter], 3)]
        made[f"by_hand_{clock}"] = round(statistics.median(one[clock] for one in hand), 4)
    made["sent_bytes"] = round(statistics.mean(one["sent_bytes"] for one in own))
    return made


def sizes() -> dict[str, int]:
    """Numbers of parameters: of all, of what tp splits, of the half of the layers that has most."""
    whole = model()
    split = [name for name, _ in whole.named_parameters() if "_proj.weight" in name or "_proj.bias" in name]
    whole_biases = ("o_proj.bias", "down_proj.bias")
    matrices = {name: value.numel() for name, value in whole.named_parameters() if name in split}
    layers = [sum(value.numel() for value in layer.parameters()) for layer in whole]
    return {
        "all": sum(layers),
        "split": sum(count for name, count in matrices.items() if not name.endswith(whole_biases)),
        "half": max(sum(layers[: DEPTH // 2 + 1]), sum(layers[DEPTH // 2 + 1 :])),
        "low_rank": sum(sum(value.shape) if value.ndim > 1 else value.numel() for value in whole.parameters()),
    }


def formulas() -> dict[str, tuple[str, float, str, float]]:
    """Of each case on two ranks: bytes sent, as words and as a number, and bytes kept."""
    of = sizes()
    whole, state = 4 * of["all"], 16 * of["all"]
    keys = 2 * ACTIVATIONS * DEPTH / 2  # keys and values of a half of the sequence, all layers
    there_and_back = ACTIVATIONS  # over each cut, one rank in forward and the other in backward
    kept = ("16 P", state)
    found = {
        "dp=2": ("4 P", whole, *kept),
        "dp=2, fp16 sent": ("2 P", whole / 2, *kept),
        "dp=2, powersgd": ("4 (m + n) a matrix", 4 * of["low_rank"], *kept),
        f"dp=2, local every {EVERY}": (f"4 P / {EVERY}", whole / EVERY, "(16 + 8) P", 1.5 * state),
        f"dp=2, asynchronous {STALE}": ("4 P to 8 P", whole, "(16 + 16) P", 2 * state),
        "shard=2": ("6 P", 1.5 * whole, "16 P / 2", state / 2),
        "shard=2, bf16": ("4 P", whole, "16 P / 2", state / 2),
        "tp=2": ("6 A a block", 6 * ACTIVATIONS * DEPTH, "16 (P - S / 2)", state - 8 * of["split"]),
        "cp=2": ("4 P + 2 A a block", whole + 2 * keys, *kept),
    }
    for name in SCHEDULES:
        cuts = 3 if name in ("interleaved", "zero-bubble") else 1
        words = f"{cuts} A" if cuts > 1 else "A"
        found[f"pp=2, {name}"] = (words, cuts * there_and_back, "16 P of a half", 16 * of["half"])
    return found


def ideals() -> dict[str, tuple[float, float | None]]:
    """Of each case: time of a step without exchange and waiting, and activations, as shares of one process's.

    A pipeline of n stages and m parts takes (m + n - 1) / m of 1 / n, with v stages a rank (m + (n - 1) / v) / m; GPipe
    has all parts of its layers at once, 1F1B n of m. What is computed again is a forward, a third of a step.
    """
    half, full = 1 / 2, 4 / 3
    found: dict[str, tuple[float, float | None]] = dict.fromkeys((*TWO, *APART), (half, half))
    found |= {"fp32": (1, 1), "bf16": (1, None), "4 parts": (1, 1 / PARTS)}
    found |= {
        "activations: selective": (1, None),
        "activations: half": (1 + 1 / 6, half),
        "activations: full": (full, None),
    }
    for name, waits in (("gpipe", 1), ("1f1b", 1), ("interleaved", 1 / 2), ("zero-bubble", 0)):
        found[f"pp=2, {name}"] = (half * (PARTS + waits) / PARTS, None)
    found["shard=2, bf16"] = (half, None)
    found["pp=2, gpipe"] = (found["pp=2, gpipe"][0], half)
    found["pp=2, 1f1b"] = (found["pp=2, 1f1b"][0], half * 2 / PARTS)
    return found


def row(name: str, one: dict, whole_peak: float) -> str:
    formula, (time, peak_share) = formulas().get(name), ideals()[name]
    sent = f"{one['sent_bytes'] / 1e6:.2f}" if one["ranks"] > 1 else "0"
    kept = f"{one['kept_bytes'] / 1e6:.2f}"
    if formula:
        sent += f" ({formula[0]} = {formula[1] / 1e6:.2f})"
        kept += f" ({formula[2]} = {formula[3] / 1e6:.2f})"
    low, high = one["wall_share_quartiles"]
    wall = f"{one['wall_share']:.2f}, {low:.2f} to {high:.2f} ({time:.2f})"
    peak = f"{one['peak_bytes'] / 1e6:.1f}" + (f" ({peak_share * whole_peak / 1e6:.1f})" if peak_share else "")
    return f"| {name} | {wall} | {one['cpu_share']:.2f} | {sent} | {kept} | {peak} |"


def table(found: dict[str, dict]) -> list[str]:
    head = "| case | time of a step | CPU time | MB sent | MB kept | MB more at the peak |"
    whole = found["fp32"]["peak_bytes"]
    return [head, "|---|---|---|---|---|---|", *(row(name, one, whole) for name, one in found.items())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    machine, stolen, expected = about(["torch", "paceline"]), stolen_s(), formulas()
    found: dict[str, dict] = {}
    for ranks, cases in ((1, ALONE), (2, TWO), (2, APART)):
        found.update(measured(ranks, cases, given.rounds))
    print(*table(found), sep="\n")
    for name, one in found.items():
        if name in expected:
            one["formula"] = dict(zip(("sent", "sent_bytes", "kept", "kept_bytes"), expected[name]))
    settings = {"rounds": given.rounds, "parameters": sizes(), "activation_bytes": ACTIVATIONS}
    out = RESULTS / f"costs-{machine['date']}.json"
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    head = json.dumps({"schema": SCHEMA, **machine, **settings, "stolen_s": stolen_s() - stolen, "cases": 0}, indent=1)
    out.write_text(head.replace('"cases": 0', f'"cases": {{\n  {lines}\n }}') + "\n")
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
