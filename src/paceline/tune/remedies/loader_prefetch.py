"""loader.prefetch: each worker prefetches more batches."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain import words
from paceline.explain.analysis.queueing import Queue, QueueSimulation
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
Each worker loads more batches ahead of time, so the queue of finished batches is longer. With a longer queue, training
does not wait for a few samples that take much longer than the others. A longer queue does not help if the loader is too
slow on average.

`tune` simulates the loader's queue with the measured loading times of the batches. `tune` proposes the shortest queue
whose simulated step time is close to the best one. `tune` also proposes more workers together with a longer queue, if
this is faster, or if half as many queued batches are then enough. If `prefetch_factor` grows by one, each worker needs
memory for one more batch.

## Safety class

The safety class is exact, because training gets the same batches in the same order. If the number of workers changes
too, the safety class is that of `loader.workers`: resampled or semantic if loading samples draws random numbers.

## What it sets

This remedy sets `loader.prefetch_factor`. If it also changes the number of workers, it sets `loader.num_workers` and
`loader.persistent_workers = true`.

## How it is confirmed

Paceline records `loader.prefetch_factor` as applied when a loader with workers is created with this `prefetch_factor`.

## In the source

Write `DataLoader(..., num_workers=4, prefetch_factor=16)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    jitter, loader = context.finding("DATA008"), context.loader
    if jitter is None or loader is None or not loader.workers:
        return []
    played = QueueSimulation(loader_model=context.supply, loader=loader)
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


REMEDY = TunableRemedy(id="loader.prefetch", page=PAGE, candidates=_candidates)
