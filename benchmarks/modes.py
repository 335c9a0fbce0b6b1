"""How long does each mode of data parallel training take to a given loss, when one rank is slow?

    python benchmarks/modes.py [--seeds N] [--ranks N]

Four ranks on this machine (gloo) train a small GPT on real text: synchronously, by local SGD, DiLoCo, and
asynchronously with three bounds of staleness. A step of a rank computes some milliseconds and sleeps 30 ms, in place of
a device; the last rank sleeps 120 ms. Beside it the same with no rank slowed. Taken is the time until the loss on
held-out text is down to 3.1, between two looks in a straight line; by seed also as a share of the synchronous time of
that seed. Modes take turns, each seed beginning with another one. As sleep is most of a step, a busy machine changes
little. Five seeds take about six minutes. The picture is written beside the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from _machine import about, stolen_s
from _modes_picture import picture

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCHEMA = "paceline.benchmark.modes/1"
SAME = {"lr": 3e-3, "batch": 32, "step_s": 0.03, "target": 3.1}
SLOW_S, MOST_STEPS = 0.12, 400
MODES = {
    "synchronous": {},
    "local SGD, every 8": {"local": {"every": 8}},
    "DiLoCo, every 8": {"local": {"every": 8, "outer_lr": 0.7, "outer_momentum": 0.9}},
    "asynchronous, 1": {"asynchronous": {"max_staleness": 1}},
    "asynchronous, 4": {"asynchronous": {"max_staleness": 4}},
    "asynchronous, 16": {"asynchronous": {"max_staleness": 16}},
}
FIRST = next(iter(MODES))


def cases(seeds: int) -> list[dict]:
    names, made = list(MODES), []
    for seed in range(seeds):
        turn = seed % len(names)
        for slow_s in (SLOW_S, SAME["step_s"]):
            for name in names[turn:] + names[:turn]:
                case = {"mode": name, "recipe": MODES[name], "seed": seed, "slow_s": slow_s, "steps": MOST_STEPS}
                made.append({**SAME, **case})
    return made


def run(ranks: int, work: list[dict]) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "work.json", Path(folder) / "result.json"
        given.write_text(json.dumps(work))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        program = [str(HERE / "_modes_ranks.py"), str(given), str(result)]
        subprocess.run([*launcher, *program], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return json.loads(result.read_text())


def time_to(seen: list[list[float]], target: float) -> float | None:
    """Seconds until the loss is down to the target; None where it never was."""
    for (before_s, before), (now_s, now) in zip(seen, seen[1:]):
        if now <= target:
            return before_s + (now_s - before_s) * (before - target) / (before - now)
    return None


def spread(values: list[float]) -> dict | None:
    """Median, count, lowest and highest; None without any."""
    if not values:
        return None
    low, middle, high = (round(each, 3) for each in (min(values), statistics.median(values), max(values)))
    return {"median": middle, "count": len(values), "range": [low, high]}


def ages(found: list[dict]) -> dict | None:
    """How old updates were, in steps: of the slowed rank, and of all others."""
    if "ages" not in found[0]["ranks"][0]:
        return None
    both = {}
    for who, part in (("last rank", slice(-1, None)), ("others", slice(0, -1))):
        total: Counter[int] = Counter()
        for one in found:
            for rank in one["ranks"][part]:
                total.update({int(age): count for age, count in rank["ages"].items()})
        every = sorted(total.elements())
        both[who] = {"median": statistics.median(every), "most": every[-1], "updates": dict(sorted(total.items()))}
    return both


def summary(results: list[dict]) -> dict[str, dict]:
    """Of each condition and mode: time to the loss, as a share of synchronous, and ages."""
    made: dict[str, dict] = {}
    for condition, slow_s in (("one rank slowed", SLOW_S), ("no rank slowed", SAME["step_s"])):
        here = [one for one in results if one["slow_s"] == slow_s]
        times = {(one["mode"], one["seed"]): time_to(one["ranks"][0]["seen"], SAME["target"]) for one in here}
        made[condition] = {}
        for mode in MODES:
            own = {seed: value for (name, seed), value in times.items() if name == mode and value is not None}
            shares = [value / times[FIRST, seed] for seed, value in own.items() if times[FIRST, seed]]
            found = [one for one in here if one["mode"] == mode]
            made[condition][mode] = {
                "time_s": spread(list(own.values())),
                "of_synchronous": spread(shares),
                "not_reached": len(found) - len(own),
                "steps_of_ranks": [statistics.median(one["ranks"][r]["steps"] for one in found) for r in (0, -1)],
                "age_steps": ages(found),
            }
    return made


def shown(mode: str, one: dict) -> str:
    if one["time_s"] is None:
        return f"  {mode:20} never in {MOST_STEPS} steps"
    (low, high), share = one["of_synchronous"]["range"], one["of_synchronous"]["median"]
    text = f"  {mode:20} {one['time_s']['median']:6.2f} s, {share:.2f} of synchronous ({low:.2f} to {high:.2f}"
    text += f", {one['time_s']['count']} seeds)"
    if one["age_steps"]:
        old = one["age_steps"]["last rank"]
        text += f"; updates of the last rank are {old['median']:g} steps old in the median, at most {old['most']}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    given = parser.parse_args()
    machine, stolen = about(["torch", "paceline"]), stolen_s()
    results = run(given.ranks, cases(given.seeds))
    found = summary(results)
    for condition, modes in found.items():
        print(f"{condition}, {given.ranks} ranks, to a loss of {SAME['target']}:")
        print(*(shown(mode, one) for mode, one in modes.items()), sep="\n")
    curves = [
        {"mode": one["mode"], "seed": one["seed"], "seen": [[round(t, 2), round(v, 3)] for t, v in seen]}
        for one in results
        if one["slow_s"] == SLOW_S and (seen := one["ranks"][0]["seen"])
    ]
    out = RESULTS / f"modes-{machine['date']}"
    settings = {"ranks": given.ranks, "seeds": given.seeds, **SAME, "slow_s": SLOW_S, "stolen_s": stolen_s() - stolen}
    whole = {"schema": SCHEMA, **machine, **settings, "found": found, "curves_one_rank_slowed": curves}
    out.with_suffix(".json").write_text(compact(whole) + "\n")
    out.with_suffix(".svg").write_text(picture(found, curves, SAME["target"]))
    print(f"written: {out}.json and .svg")
    return 0


def compact(whole: dict) -> str:
    """JSON with a line for each mode and for each curve."""
    curves = ",\n  ".join(json.dumps(one) for one in whole["curves_one_rank_slowed"])
    found = ",\n  ".join(
        f"{json.dumps(condition)}: {{\n   "
        + ",\n   ".join(f"{json.dumps(mode)}: {json.dumps(one)}" for mode, one in modes.items())
        + "\n  }"
        for condition, modes in whole["found"].items()
    )
    head = json.dumps({**whole, "found": 0, "curves_one_rank_slowed": 0}, indent=1)
    head = head.replace('"found": 0', f'"found": {{\n  {found}\n }}')
    return head.replace('"curves_one_rank_slowed": 0', f'"curves_one_rank_slowed": [\n  {curves}\n ]')


if __name__ == "__main__":
    sys.exit(main())
