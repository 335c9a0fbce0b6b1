"""Prove the labels without Paceline: take each fault away and see what changes.

    python tests/labelled/truth.py [--repeat N] [ID ...]

A plain stopwatch (stopwatch/sitecustomize.py) gives the share of each phase and the time of a step. A program is run as
it is and with its `cure`, in turns; the best of N counts, since neighbours only ever make a run slower. Where more
workers must not help (`useless`), the label's claim is that the step time falls by less than a third.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import cases

COMPUTE = ("forward", "backward", "optimizer")
MOST_HELP = 1.34
MOST_NEIGHBOURS = 0.4


def measure(case: cases.Case, *more: str, alone: bool = False) -> list[dict]:
    """Run a program under the stopwatch; one report per rank, in order of process number."""
    cases.wait_until_idle(60 if case.needs_idle or case.useless else 10)
    with tempfile.TemporaryDirectory() as folder:
        extra = {"PYTHONPATH": str(cases.HERE / "stopwatch"), "STOPWATCH_OUT": f"{folder}/watch"}
        outcome = cases.run(case, case.bare(*more, alone=alone), Path(folder), extra)
        if outcome.code != case.exit_code:
            raise SystemExit(f"{case.id} {' '.join(more)} ended with {outcome.code}\n{outcome.stderr[-2000:]}")
        reports = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("watch.*.json"))]
    return [{**report, "seconds": outcome.seconds, "neighbours": outcome.neighbours} for report in reports]


def step_ms(ranks: Sequence[dict]) -> float:
    return max(1e3 * rank["wall_s"] / (rank["steps"] - 2) for rank in ranks)


def cpu_ms(ranks: Sequence[dict]) -> float:
    """CPU time a step takes in the busiest rank: what a noisy machine does not change."""
    return max(1e3 * rank["cpu_s"] / (rank["steps"] - 2) for rank in ranks)


def startup_s(ranks: Sequence[dict]) -> float:
    return max(rank["startup_s"] for rank in ranks)


def growth_mb(ranks: Sequence[dict]) -> float:
    """Resident memory gained from the first quarter to the end; under 8 MB is nothing."""
    return max(8.0, *(rank["rss_mb"][1] - rank["rss_mb"][0] for rank in ranks))


def last_loss(ranks: Sequence[dict]) -> float:
    return ranks[0]["loss"][-1]


METRICS: dict[str, tuple[str, Callable[[Sequence[dict]], float]]] = {
    "step": ("ms a step", step_ms),
    "cpu": ("ms of CPU a step in the busiest rank", cpu_ms),
    "startup": ("s to the first step", startup_s),
    "growth": ("MB gained", growth_mb),
    "loss": ("loss at the end", last_loss),
}


def share_of(rank: dict, phase: str) -> float:
    share = rank["share"]
    return sum(share.get(p, 0.0) for p in COMPUTE) if phase == "compute" else share.get(phase, 0.0)


def best(runs: Sequence[Sequence[dict]], metric: Callable[[Sequence[dict]], float]) -> float:
    return min(map(metric, runs))


def prove(case: cases.Case, repeat: int) -> bool:
    """Print the measurements of one program; say whether they bear its label out."""
    before, after, more = [], [], []
    for _ in range(repeat):
        before.append(measure(case))
        if case.cure or case.cure_alone:
            after.append(measure(case, *case.cure, alone=case.cure_alone))
        if case.useless:
            more.append(measure(case, *case.useless))
    print(f"{case.id}  [{case.verdict[0]}]  {before[0][0]['seconds']:.1f} s, others {before[0][0]['neighbours']:.1f}")
    describe(before[0])
    held = [shares_hold(case, before)]
    if after:
        held.append(cure_holds(case, before, after))
    if more:
        held.append(useless_holds(case, before, more))
    others = max(ranks[0]["neighbours"] for ranks in [*before, *after, *more])
    if (case.needs_idle or more) and others > MOST_NEIGHBOURS:
        print(f"    not decided: neighbours took {others:.1f} cores, and this label is about free ones")
        return True
    return all(held)


def describe(ranks: Sequence[dict]) -> None:
    for number, rank in enumerate(ranks):
        shares = sorted(rank["share"].items(), key=lambda item: -item[1])
        text = ", ".join(f"{name} {100 * value:.0f}%" for name, value in shares if value >= 0.005)
        cpu = (rank["cpu_s"], rank["children_cpu_s"])
        loss = " ".join(f"{value:.3g}" for value in rank["loss"])
        steps = f"{rank['steps']} steps, median {rank['median_ms']:.1f} ms, p95 {rank['p95_ms']:.1f}"
        print(f"    process {number}: {steps}; {text}")
        print(f"      wall {rank['wall_s']:.2f} s, own CPU {cpu[0]:.2f}, workers' CPU {cpu[1]:.2f}; loss {loss}")


def shares_hold(case: cases.Case, runs: Sequence[Sequence[dict]]) -> bool:
    held = True
    for phase, least in case.share.items():
        found = max(min(share_of(rank, phase) for rank in ranks) for ranks in runs)
        held &= found >= least
        print(f"    {phase} {100 * found:.0f}% (at least {100 * least:.0f}%) {answer(found >= least)}")
    return held


def cure_holds(case: cases.Case, before: Sequence, after: Sequence) -> bool:
    unit, metric = METRICS[case.metric]
    a, b = best(before, metric), best(after, metric)
    held = a >= case.cure_min * b if case.metric != "loss" else math.isfinite(b) and not 0.9 * a <= b
    how = "alone" if case.cure_alone else " ".join(case.cure)
    print(f"    {how}: {a:.3g} -> {b:.3g} {unit}, {a / b:.2f} times (at least {case.cure_min:g}) {answer(held)}")
    return held


def useless_holds(case: cases.Case, before: Sequence, more: Sequence) -> bool:
    a, b = best(before, step_ms), best(more, step_ms)
    held, how = a / b <= MOST_HELP, " ".join(case.useless)
    print(f"    {how}: {a:.1f} -> {b:.1f} ms a step, {a / b:.2f} times (at most {MOST_HELP}) {answer(held)}")
    return held


def answer(held: bool) -> str:
    return "yes" if held else "NO"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    chosen = [case for case in cases.load() if not args.ids or case.id in args.ids]
    failed = [case.id for case in chosen if not prove(case, args.repeat)]
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} labels borne out", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
