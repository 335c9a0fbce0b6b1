"""DATA001: is data made in the training process, while the device waits?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import Supply, waiting_rank

PAGE = """
## What it means

Batches are read, decoded and augmented in the training process itself. While that happens the device has
nothing to do, and while the device works no data is made: the two take turns.

## How it is decided

The training thread waits for data for at least 5 % of step time, and the loader that feeds training has no
workers (`num_workers=0`), or there is no `DataLoader` and the program's own reader runs between steps.

## What helps

`loader.workers`: worker processes make batches while the device works. The number proposed is the smallest
within 3 % of the best that the model `max(compute, making / workers, CPU work / cores)` gives on this machine.
Worker processes change random numbers drawn inside `__getitem__`; where samples draw none the result is the
same.

## When it misleads

A reader that cannot be split (one stream, one cursor) gains from one background thread at most.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA001."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    if supply.workers:
        return None
    workers = supply.best_workers()
    gain = supply.gain_with(workers)
    return Finding(
        code="DATA001",
        name="loader-serial",
        severity="critical" if supply.wait_share >= 0.2 else "warning",
        confidence="high",
        time_share=supply.wait_share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, supply),
        remedies=[Remedy(id="loader.workers", safety="exact", change=_change(rank, workers), gain=gain)],
        summary=f"the training process makes its data itself and waits {units.percent(supply.wait_share)} of "
        f"its time for it",
    )


def _change(rank: RankFacts, workers: int) -> str:
    if rank.loader is None:
        return "move the reader into a Dataset and read it through DataLoader(num_workers=1) or more"
    return f"DataLoader(num_workers={workers}, persistent_workers=True)"


def _evidence(rank: RankFacts, supply: Supply) -> list[Evidence]:
    found = [words.share_of_step(supply.wait_share, "waiting for data"), words.step_time(rank.breakdown.step_s)]
    if rank.loader is not None:
        found += [words.kinds_of_time(rank.loader), *words.collating(rank.loader), *words.hot(rank.loader)]
    return found


RULE = Rule(code="DATA001", name="loader-serial", page=PAGE, check=check)
