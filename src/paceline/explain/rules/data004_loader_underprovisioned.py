"""DATA004: are there too few workers, with room for more?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.spans import idle_for_batches
from paceline.explain.supply import (
    WORTH,
    Supply,
    bound_by_cpu,
    is_blocked,
    is_jitter,
    is_transport,
    waiting_rank,
)
from paceline.traces.many import Traces

PAGE = """
## What it means

The workers work all the time and cannot keep up, but cores are left over: more workers would supply more.

## How it is decided

Training waits for data for at least 5 % of step time; the loader has workers, and making samples is computing
rather than waiting, or the program has background readers of its own (the training thread waits for a thread or a
process); CPU demand leaves at least a fifth of the allowed cores free and the workers get a CPU when they want one.
In profiler captures, the GPU is idle for at least 5 % of the time while a loader with workers is waited for; what
they do, and whether cores are left, is not in a capture, so confidence is low: `paceline run` tells.

## What helps

`loader.workers`: the number proposed is the smallest within 3 % of the best that `max(compute, making /
workers, CPU work / cores)` gives on this machine. `loader.background`: the same for readers of the program's own;
their number is not known, so the proposal is a multiple.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA004."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    if not _applies(facts, rank, supply):
        return None
    best = supply.best_workers()
    gain = supply.gain_with(best)
    return Finding(
        code="DATA004",
        name="loader-underprovisioned",
        severity="critical" if supply.steady_share >= 0.2 else "warning",
        confidence="high" if facts.host.samples >= 3 and rank.loader is not None else "medium",
        time_share=supply.steady_share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, supply),
        remedies=[_remedy(rank, supply, best)],
        summary=f"{words.makers(rank.loader)} cannot keep up and cores are free; training waits "
        f"{units.percent(supply.steady_share)} of its time for data",
    )


def _applies(facts: Facts, rank: RankFacts, supply: Supply) -> bool:
    return (
        supply.workers > 0
        and supply.steady_share >= WORTH
        and not is_blocked(rank)
        and not is_jitter(rank)
        and not is_transport(rank, supply)
        and not bound_by_cpu(facts, rank, supply)
        and supply.best_workers() > supply.workers
    )


def _remedy(rank: RankFacts, supply: Supply, best: int) -> Remedy:
    gain = supply.gain_with(best)
    if rank.loader is None:
        change = f"make batches in {best} times as many threads, or processes where the work holds the interpreter"
        return Remedy(id="loader.background", safety="exact", change=change, gain=gain)
    remedy, change = words.more_makers(rank.loader, best)
    return Remedy(id=remedy, safety=words.safety_of_workers(rank.loader, best), change=change, gain=gain)


def _evidence(rank: RankFacts, supply: Supply) -> list[Evidence]:
    found = [words.share_of_step(supply.steady_share, "waiting for data")]
    if rank.loader is not None:
        found += [words.kinds_of_time(rank.loader), *words.hot(rank.loader)]
    return [*found, words.cpu_demand(supply.cpu_demand, supply.cores, rank.loader)]


def check_traces(traces: Traces) -> Finding | None:
    """Decide DATA004 for captures: the GPU is idle while the training process waits for workers."""
    return idle_for_batches(traces, serial=False, code="DATA004", name="loader-underprovisioned")


RULE = Rule(code="DATA004", name="loader-underprovisioned", page=PAGE, check=check, check_traces=check_traces)
