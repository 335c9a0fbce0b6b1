"""loader.prefetch: more batches made ahead by each worker."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain import words
from paceline.explain.queueing import Played, Queue
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
A longer queue rides out samples that take far longer than the rest. It does not help a loader that is too slow on
average. How long, and with how many workers, comes from playing the loader's queue with the times of batches as they
were measured: the shortest that comes near the best, and one of more workers where that is faster or needs half of the
batches. Memory grows by a batch per worker and step of the factor.

## Safety class

Exact: the same batches in the same order. With more workers: semantic where making samples draws random numbers.

## What it sets

`loader.prefetch_factor`; with more workers also `loader.num_workers` and `loader.persistent_workers = true`.

## How it is confirmed

A loader with workers was made with it.

## In the source

`DataLoader(..., num_workers=4, prefetch_factor=16)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    jitter, loader = situation.finding("DATA008"), situation.loader
    if jitter is None or loader is None or not loader.workers:
        return []
    played = Played(supply=situation.supply, loader=loader)
    return [
        Candidate(
            remedy="loader.prefetch",
            recipe={"loader": _settings(queue, played.now)},
            safety="exact" if queue.workers == loader.workers else words.safety_of_workers(loader, queue.workers),
            predicted=played.gain(queue),
            why=jitter.summary,
        )
        for queue in played.better()
    ]


def _settings(queue: Queue, now: Queue) -> dict[str, int | bool]:
    factor: dict[str, int | bool] = {"prefetch_factor": queue.factor}
    if queue.workers == now.workers:
        return factor
    return {"num_workers": queue.workers, "persistent_workers": True, **factor}


REMEDY = Remedy(id="loader.prefetch", page=PAGE, candidates=_candidates)
