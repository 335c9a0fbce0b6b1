"""loader.cache: samples stay in memory after the first epoch."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy, without_workers

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
some cached samples again and compares them: 1 of 64, and at least 32 samples, in the second epoch, and twice as many in
each later epoch, up to 1 of 8. It also compares the attributes of the dataset when an epoch begins and after 1, 2, 4, 8
and so on cached samples. If anything differs, Paceline forgets all cached samples and stops caching.

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
            predicted=context.supply.gain_of_cached_samples(),
            why="loading a sample draws no random numbers, so samples can be kept in memory",
            warmup_steps=context.epoch_steps,
        )
    ]


REMEDY = TunableRemedy(id="loader.cache", page=PAGE, candidates=_candidates)
