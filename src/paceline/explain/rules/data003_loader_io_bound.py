"""DATA003: are the workers blocked on storage or network?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, Supply, is_blocked, is_jitter, is_transport, waiting_rank

SATURATED = 0.6  # share of time in which some task waits for storage, above which more readers only queue

PAGE = """
## What it means

Worker processes are neither computing nor waiting for a core: they are blocked, most of the time they make a
sample. Reading from a disk, a network file system or an object store looks like this, and so does any other
call that sleeps.

## How it is decided

Training waits for data for at least 5 % of step time, the loader has workers, and at least half of the time of
making batches is neither on a CPU nor ready for one (`schedstat` and thread CPU time of each worker).

## What helps

`loader.workers`: blocked workers cost no core, so more of them keep more requests in flight; the number
proposed is the smallest within 3 % of the best that `max(compute, making / workers, CPU work / cores)` gives.
It is not proposed when the storage itself is saturated (kernel pressure stall above 60 %). `loader.prefetch`
deepens the queue, `loader.shards` turns many small requests into few large ones, `loader.local_copy` moves the
data nearer.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA003."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    if not supply.workers or supply.steady_share < WORTH or not is_blocked(rank):
        return None
    if is_jitter(rank) or is_transport(rank, supply):
        return None
    saturated = (facts.host.io_pressure or 0.0) >= SATURATED
    remedies = _remedies(rank, supply, saturated)
    return Finding(
        code="DATA003",
        name="loader-io-bound",
        severity="critical" if supply.steady_share >= 0.2 else "warning",
        confidence="high",
        time_share=supply.steady_share,
        gain=remedies[0].gain,
        ranks=[rank.record.rank],
        evidence=_evidence(facts, rank, supply),
        remedies=remedies,
        summary=f"{words.makers(rank.loader)} are blocked on storage, network or sleep while training waits "
        f"{units.percent(supply.steady_share)} of its time for data",
    )


def _remedies(rank: RankFacts, supply: Supply, saturated: bool) -> list[Remedy]:
    best = supply.best_workers()
    shards = Remedy(
        id="loader.shards",
        safety="exact",
        change="paceline data convert SRC DEST: large reads in sequence instead of many small requests",
        gain=gain_of_removing(supply.steady_share, 0.3, 0.9),
    )
    if saturated or best <= supply.workers:
        return [shards]
    remedy, change = words.more_makers(rank.loader, best)
    change, safety = f"{change}; what is blocked costs no core", words.safety_of_workers(rank.loader, best)
    return [Remedy(id=remedy, safety=safety, change=change, gain=supply.gain_with(best)), shards]


def _evidence(facts: Facts, rank: RankFacts, supply: Supply) -> list[Evidence]:
    found = [words.share_of_step(supply.steady_share, "waiting for data")]
    if rank.loader is not None:
        found += [words.kinds_of_time(rank.loader), *words.hot(rank.loader)]
    if facts.host.io_pressure is not None:
        text = f"some task waited for storage {units.percent(facts.host.io_pressure)} of the time on this host"
        found.append(Evidence(text=text, value=facts.host.io_pressure, unit="share of time"))
    return found


RULE = Rule(code="DATA003", name="loader-io-bound", page=PAGE, check=check)
