"""DATA001: is data made in the training process, while the device waits?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.reader import readers
from paceline.explain.rules import Rule
from paceline.explain.spans import idle_for_batches
from paceline.explain.supply import WORTH, Supply, waiting_rank
from paceline.traces.many import Traces

PAGE = """
## What it means

Batches are read, decoded and augmented in the training process itself. While that happens the device has
nothing to do, and while the device works no data is made: the two take turns.

## How it is decided

The training thread waits for data for at least 5 % of step time (and 0.2 ms), and the loader that feeds training has no
workers (`num_workers=0`), or there is no `DataLoader` and the program's own reader runs between steps, in the
training thread: one that waits for a thread or a process of the program's own is no matter of this finding. In
profiler captures, the GPU is idle for at least 5 % of the time while a loader without workers fetches a batch.

## What helps

`loader.workers`: worker processes make batches while the device works. The number proposed is the smallest
within 3 % of the best that the model `max(compute, making / workers, CPU work / cores)` gives on this machine.
It is exact unless making samples draws random numbers: then other numbers are drawn in workers, and it is
semantic. A stream (an `IterableDataset`) is given one worker, which reads it in the same order; several would
each read all of it, unless its `__iter__` shares it out by `get_worker_info()`. `loader.background`: without a
`DataLoader`, make the next batch in the background. `loader.decode`: make a sample cheaper.

## When it misleads

A reader that cannot be split (one stream, one cursor) gains from one background thread or worker at most. A stream
that remembers where it is from epoch to epoch begins again in a worker, which has a copy of it.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA001."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    if supply.workers:
        return None
    remedies = _remedies(rank, supply)
    gains = [r.gain for r in remedies if r.gain is not None]
    return Finding(
        code="DATA001",
        name="loader-serial",
        severity="critical" if supply.wait_share >= 0.2 else "warning",
        confidence="high",
        time_share=supply.wait_share,
        gain=Gain(low=max(g.low for g in gains), high=max(g.high for g in gains)),
        ranks=[rank.record.rank],
        evidence=_evidence(rank, supply),
        remedies=remedies,
        summary=f"the training process makes its data itself and waits {units.percent(supply.wait_share)} of "
        f"its time for it",
    )


def _remedies(rank: RankFacts, supply: Supply) -> list[Remedy]:
    if rank.loader is None:
        background = Remedy(
            id="loader.background",
            safety="exact",
            change="make the next batch in a background thread or process while this one trains",
            gain=supply.gain_with(1),
        )
        hot = readers(rank.record)
        cheaper = Remedy(
            id="loader.decode",
            safety="numeric",
            change=f"make {hot[0].function if hot else 'the reader'} cheaper",
            gain=gain_of_removing(supply.wait_share, 0.2, 0.7),
        )
        return [background, cheaper]
    stream = words.is_stream(rank.loader)
    workers = 1 if stream else supply.best_workers()
    gain = supply.gain_with(workers)
    cheaper = Remedy(
        id="loader.decode",
        safety="numeric",
        change=f"make {rank.loader.hot[0].function if rank.loader.hot else 'a sample'} cheaper",
        gain=gain_of_removing(supply.wait_share, 0.2, 0.7),
    )
    if gain.high < 1 + WORTH:
        return [cheaper]
    kept = "" if stream else ", persistent_workers=True"
    change = f"DataLoader(num_workers={workers}{kept})"
    safety = words.safety_of_workers(rank.loader, workers)
    return [Remedy(id="loader.workers", safety=safety, change=change, gain=gain), cheaper]


def _evidence(rank: RankFacts, supply: Supply) -> list[Evidence]:
    found = [words.share_of_step(supply.wait_share, "waiting for data"), words.step_time(rank.breakdown.step_s)]
    if rank.loader is not None:
        return [*found, words.kinds_of_time(rank.loader), *words.collating(rank.loader), *words.hot(rank.loader)]
    return found + [
        Evidence(
            text=f"{units.percent(f.share)} of stack samples of making batches are in {f.function} ({f.count} samples)",
            value=f.share,
            unit="share of samples",
        )
        for f in readers(rank.record)[:2]
    ]


def check_traces(traces: Traces) -> Finding | None:
    """Decide DATA001 for captures: the GPU is idle while the training process makes a batch itself."""
    return idle_for_batches(traces, serial=True, code="DATA001", name="loader-serial")


RULE = Rule(code="DATA001", name="loader-serial", page=PAGE, check=check, check_traces=check_traces)
