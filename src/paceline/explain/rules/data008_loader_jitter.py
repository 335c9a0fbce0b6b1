"""DATA008: a few batches take far longer to load than the others."""

from __future__ import annotations

import numpy as np

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH, LoaderModel, is_jitter, waiting_rank
from paceline.explain.analysis.queueing import QueueSimulation
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, LoaderBreakdown, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

Most batches are ready in time, but some batches take many times as long, because of a very large sample, a slow file or
a repeated read. The loader returns batches in order, so one slow sample delays all later batches.

## How it is detected

Paceline reports `loader-jitter` if training waits for data during at least 5% of step time, and if most of the waiting
time occurs in a few steps. The *excess* of a step is the time that the step waits longer than the median step. The
excess of all steps must be at least half of the waiting time, and at most a sixth of the steps must have at least 70%
of the excess. The finding also requires that slow batches (at least four times the median loading time) take at least
40% of the total loading time. The first batches of an epoch are not included. The finding is not reported if waiting
for a CPU core may explain half of the long waits.

## What helps

- `loader.prefetch`: if the loader prefetches more batches (`prefetch_factor`, possibly with more workers), training
  waits less often for single slow batches. A loader without workers gets workers and a queue that is long enough.
- `loader.max_sample_size`: limit the size of the largest samples, or distribute them over the batches.
- `loader.in_order`: with `DataLoader(in_order=False)`, the loader returns later batches before a slow one, so the order
  of the samples changes.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA008, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    if loader_model.steady_share < WORTH or not is_jitter(rank):
        return None
    share = loader_model.steady_share
    wait = rank.phases["data_wait"]
    slowest = float(np.quantile(wait, 0.99))
    text = (
        f"the median wait for a batch is {units.seconds(float(np.median(wait)))}, and the 99th percentile is "
        f"{units.seconds(slowest)} ({len(wait)} steps)"
    )
    return Finding(
        code="DATA008",
        name="loader-jitter",
        severity="warning",
        confidence="high" if len(wait) >= 60 else "medium",
        time_share=share,
        gain=at_most(share),
        ranks=[rank.record.rank],
        evidence=[
            words.share_of_step(share, "waiting for data"),
            Evidence(text=text, value=slowest, unit="s"),
            *(words.hot(rank.loader) if rank.loader else []),
        ],
        remedies=[
            *_deeper(loader_model, rank.loader),
            *_in_any_order(loader_model, rank.loader, share),
        ],
        summary=f"a few batches take far longer to load than the others, and training waits for data during "
        f"{units.percent(share)} "
        f"of step time",
    )


def _in_any_order(loader_model: LoaderModel, loader: LoaderBreakdown | None, share: float) -> list[Remedy]:
    """Return the remedy ``in_order=False``, or without workers the remedy that limits the size of samples."""
    if loader is None or not loader.workers:
        change = "limit the size of the slowest samples, or store what makes them slow"
        return [Remedy(id="loader.max_sample_size", safety="semantic", change=change, gain=at_most(share))]
    gain = (
        QueueSimulation(loader_model=loader_model, loader=loader).gain_in_any_order()
        if loader.batch_times
        else at_most(share)
    )
    return [Remedy(id="loader.in_order", safety="semantic", change="DataLoader(in_order=False)", gain=gain)]


def _deeper(loader_model: LoaderModel, loader: LoaderBreakdown | None) -> list[Remedy]:
    """Return a remedy for each number of workers and prefetch factor that hides the slow batches, the best first."""
    if loader is None or loader.threads:
        return []
    played = QueueSimulation(loader_model=loader_model, loader=loader)
    return [
        Remedy(
            id="loader.prefetch",
            safety="exact" if queue.workers == loader.workers else words.safety_of_workers(loader, queue.workers),
            change=f"DataLoader(num_workers={queue.workers}, prefetch_factor={queue.factor})",
            gain=played.gain(queue),
        )
        for queue in played.better()
    ]


RULE = Rule(code="DATA008", name="loader-jitter", page=PAGE, check=check)
