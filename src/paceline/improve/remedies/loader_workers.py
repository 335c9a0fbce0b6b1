"""loader.workers: another number of worker processes."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain import words
from paceline.explain.model import Gain
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
Worker processes make batches while the device works. Proposed where training waits for data: the fewest workers within
3 % of what `max(compute, making / workers, CPU work / cores)` promises; from there, twice and half as many. Where the
workers fill the cores already, fewer are proposed, never more. A stream that the training process reads is given
one worker, which reads it in the same order; several would each read all of it, unless its code shares it out.

## Safety class

Exact, unless making samples draws random numbers: they are others in other workers. Semantic then.

## What it sets

`loader.num_workers` and `loader.persistent_workers = true`; for a stream the first alone, so that each epoch's worker
begins with what the dataset holds by then.

## How it is confirmed

A loader was made with that many workers. Refused for a stream, but for one worker where there is none. Given up where
the stream remembers where it is from epoch to epoch (counts, draws from a generator of its own, holds an iterator or an
open file): a worker has a copy of it, which would begin again.

## In the source

`DataLoader(..., num_workers=8, persistent_workers=True)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    if situation.waiting is None or situation.loader is None or situation.loader.threads:
        return []
    if situation.setting("loader", "cache"):  # what is kept is in the training process
        return []
    supply, loader = situation.supply, situation.loader
    burnt = situation.finding("DATA002") is not None
    now = loader.workers
    if situation.streams:
        allowed = [] if now else [1]
    elif burnt:
        allowed = [now // 2] if now >= 2 else []
    else:
        wanted = {supply.best_workers(), 2 * now, max(1, now // 2)} - {now, 0}
        allowed = sorted((w for w in wanted if supply.gain_with(w).high >= 1.02), key=supply.step_with)
    return [
        Candidate(
            remedy="loader.workers",
            recipe={"loader": {"num_workers": workers} | ({} if situation.streams else {"persistent_workers": True})},
            safety=words.safety_of_workers(loader, workers),
            predicted=_predicted(situation, workers),
            why=f"training waits {situation.supply.wait_share:.0%} of its time for data",
        )
        for workers in allowed
    ]


def _predicted(situation: Situation, workers: int) -> Gain:
    gain = situation.supply.gain_with(workers)
    return Gain(low=gain.low, high=gain.high * situation.supply.warmer)


REMEDY = Remedy(id="loader.workers", page=PAGE, candidates=_candidates)
