"""DATA002: do the workers burn all the cores there are?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import (
    WORTH,
    Supply,
    bound_by_cpu,
    is_blocked,
    is_jitter,
    is_transport,
    waiting_rank,
    worker_threads,
)

PAGE = """
## What it means

Worker processes compute all the time (decoding, augmenting, tokenizing) and fill the cores that this program
may use. More workers would only take turns on the same cores, and often make it slower.

## How it is decided

Training waits for data for at least 5 % of step time; the loader has workers, or the program has background
readers of its own (the training thread waits for a thread or a process); making samples, not collating or
handing over, is most of their work, and it is computing rather than waiting (less than half of it blocked); and
CPU demand fills at least 80 % of the cores allowed here (affinity and cgroup quota counted), or the workers are
ready but without a CPU for a quarter of the time they want one.

## What helps

Make a sample cheaper: `loader.decode` (a faster decoder, decoding to the size that is needed), `loader.cache`
(keep decoded samples in memory), `loader.batch_transform` (transform whole batches, or on the device). Or get
more cores per device. More workers are *not* proposed.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA002."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    if not _applies(facts, rank, supply):
        return None
    share = supply.steady_share
    gain = gain_of_removing(share, 0.3, 0.8)
    return Finding(
        code="DATA002",
        name="loader-cpu-bound",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high" if facts.host.samples >= 3 else "medium",
        time_share=share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, supply),
        remedies=_remedies(rank, share),
        summary=f"{words.makers(rank.loader)} fill the cores and training still waits {units.percent(share)} of "
        f"its time for data",
    )


def _applies(facts: Facts, rank: RankFacts, supply: Supply) -> bool:
    return (
        supply.workers > 0
        and supply.steady_share >= WORTH
        and not is_blocked(rank)
        and not is_jitter(rank)
        and not is_transport(rank, supply)
        and bound_by_cpu(facts, rank, supply)
        and worker_threads(facts, rank) < 2 * supply.cores  # else the threads are the cause: HOST001
    )


def _remedies(rank: RankFacts, share: float) -> list[Remedy]:
    function = rank.loader.hot[0].function if rank.loader and rank.loader.hot else "the slowest transform"
    return [
        Remedy(
            id="loader.decode",
            safety="numeric",
            change=f"make {function} cheaper: a faster decoder, or the size needed at once",
            gain=gain_of_removing(share, 0.2, 0.7),
        ),
        Remedy(
            id="loader.cache",
            safety="exact",
            change="keep decoded samples in memory where they fit",
            gain=gain_of_removing(share, 0.3, 0.9),
        ),
        Remedy(
            id="loader.batch_transform",
            safety="numeric",
            change="transform whole batches instead of samples, or on the device",
            gain=gain_of_removing(share, 0.1, 0.7),
        ),
    ]


def _evidence(rank: RankFacts, supply: Supply) -> list[Evidence]:
    found = [words.share_of_step(supply.steady_share, "waiting for data")]
    if rank.loader is not None:
        found.append(words.kinds_of_time(rank.loader))
    found.append(words.cpu_demand(supply.cpu_demand, supply.cores, rank.loader))
    return found + (words.hot(rank.loader) if rank.loader else [])


RULE = Rule(code="DATA002", name="loader-cpu-bound", page=PAGE, check=check)
