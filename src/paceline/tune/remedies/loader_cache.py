"""loader.cache: samples stay in memory after the first epoch."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.analysis.loader_model import LoaderModel
from paceline.explain.model import Gain
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy, without_workers

_ALONE = 5.0  # largest speed-up of computing without workers beside it
PAGE = """
From the second epoch on, the loader reads samples from a cache in memory instead of loading them again. The cache uses
at most 40% of the free memory of a machine, summed over all ranks. Samples that do not fit in the cache are loaded
again in each epoch. `tune` proposes `loader.cache` if training waits for data and loading a sample draws no random
numbers.

With the cache, the first epoch does not become faster, so a trial measures only from the second epoch on. If epochs are
too long for a trial, `tune` does not try `loader.cache`. A custom collate function gets copies of the cached samples,
so it may modify them.

## Safety class

The safety class is exact. To check that samples do not change, Paceline loads the first samples twice. Later it loads
some cached samples again and compares them: 1 of 64 in the second epoch, twice as many in each later epoch, up to 1 of
8. It also compares the attributes of the dataset when an epoch begins and after 1, 2, 4, 8 and so on cached samples. If
anything differs, Paceline forgets all cached samples and stops caching.

## What it sets

This remedy sets `loader.cache = true` and, if the loader has workers, `loader.num_workers = 0`.

## How it is confirmed

Paceline records `loader.cache` as applied when the first samples are the same each time they are loaded. If the first
samples differ, Paceline caches nothing. The setting also has no effect on a dataset that returns several samples at a
time (`__getitems__`).

## In the source

Write a dataset that wraps the program's dataset and caches its samples, in up to 40% of the memory that is free at the
start. The patch that `paceline tune --diff` prints adds such a dataset, but the added dataset does not check whether
samples change later.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    loader = context.loader
    if context.waiting is None or loader is None or context.streams or loader.draws_random:
        return []
    if context.setting("loader", "cache") or context.epoch_steps is None:
        return []
    return [
        Candidate(
            remedy="loader.cache",
            recipe={"loader": {**without_workers(loader), "cache": True}},
            safety="exact",
            predicted=_predicted(context.supply),
            why="loading a sample draws no random numbers, so samples can be kept in memory",
            warmup_steps=context.epoch_steps,
        )
    ]


def _predicted(supply: LoaderModel) -> Gain:
    """Return the predicted gain: only the work of the training process is left in a step.

    No workers are started. Computing that does not share cores and CPU caches with workers was up to five times as fast
    (benchmarks/tune_programs/repeats.py).
    """
    own_cpu_s = max(0.0, supply.other_cpu_s - supply.restart_s)
    left = max(own_cpu_s / supply.cores / supply.warmer, supply.compute_s / _ALONE, 1e-9)
    high = max(1.05, supply.step_s / left)
    return Gain(low=1 + 0.3 * (min(high, 1 / max(1 - supply.wait_share, 0.01)) - 1), high=high)


REMEDY = TunableRemedy(id="loader.cache", page=PAGE, candidates=_candidates)
