"""DATA003: the workers wait for storage or the network."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.gains import at_most
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, Supply, is_blocked, is_jitter, is_transport, waiting_rank

SATURATED = 0.6  # share of time in which some task waits for storage, above which more readers only queue

PAGE = """
## What it means

While loading a sample, the loader workers spend most of the time neither computing nor waiting for a CPU core. The
workers are blocked by a disk, a network file system, an object store, or another call that sleeps.

## How it is detected

Paceline reports `loader-io-bound` if training waits for data during at least 5% of step time, if the loader has
workers, and if the workers are blocked for at least half of the time that they need for loading batches. Blocked time
is measured with Linux's `schedstat` and the CPU time of each worker.

## What helps

- `loader.workers`: blocked workers use no CPU core, so more workers can read more files at the same time. Paceline
  proposes the smallest number of workers whose predicted step time is within 3% of the best. Paceline does not propose
  more workers if the storage itself is saturated (Linux reports I/O pressure above 60%).
- `loader.threads`: if the loader uses threads instead of worker processes, use more threads.
- `loader.prefetch`: prefetch more batches per worker.
- `loader.shards`: store the samples in shards, which need a few large reads instead of many small reads.
- `loader.local_copy`: copy the data to a local disk.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding DATA003, or None if it does not apply."""
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
        summary=f"{words.makers(rank.loader)} wait for storage, the network or a call that sleeps, and training waits "
        f"{units.percent(supply.steady_share)} of its time for data",
    )


def _remedies(rank: RankFacts, supply: Supply, saturated: bool) -> list[Remedy]:
    best = supply.best_workers()
    shards = Remedy(
        id="loader.shards",
        safety="exact",
        change="run paceline data convert SRC DEST, which replaces many small reads with a few large reads",
        gain=at_most(supply.steady_share),
    )
    if saturated or best <= supply.workers:
        return [shards]
    remedy, change = words.more_makers(rank.loader, best)
    change, safety = f"{change}; blocked workers use no CPU core", words.safety_of_workers(rank.loader, best)
    return [Remedy(id=remedy, safety=safety, change=change, gain=supply.gain_with(best)), shards]


def _evidence(facts: Facts, rank: RankFacts, supply: Supply) -> list[Evidence]:
    found = [words.share_of_step(supply.steady_share, "waiting for data")]
    if rank.loader is not None:
        found += [words.kinds_of_time(rank.loader), *words.hot(rank.loader)]
    if facts.host.io_pressure is not None:
        text = (
            f"at least one process on this host waited for storage during {units.percent(facts.host.io_pressure)} of "
            f"the time"
        )
        found.append(Evidence(text=text, value=facts.host.io_pressure, unit="share of time"))
    return found


RULE = Rule(code="DATA003", name="loader-io-bound", page=PAGE, check=check)
