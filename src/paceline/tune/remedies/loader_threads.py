"""loader.threads: threads of the training process make batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from paceline.explain.model import Gain, LoaderBreakdown
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy, without_workers

_SPARE = 2.5  # number of threads, relative to the predicted best number of workers
_KEEPS_UP = 0.1  # share of a thread: batches take less CPU time if they are not copied between processes
# Threads save pickling, sending and unpickling. On large arrays, trials measured 1.12 to 1.9 times the gain that the
# model predicts without this factor (benchmarks/tune_programs/volumes.py).
_UNBURDENED = 2.1

PAGE = """
Threads inside the training process load batches ahead of time. The loader does not start worker processes, and batches
are not pickled or copied between processes.

Threads help if the code that loads a sample waits or releases Python's global interpreter lock (GIL), as image
decoders, NumPy on large arrays and file reads do. If the code that loads a sample holds the GIL, threads do not help,
and `tune` does not keep `loader.threads`. The dataset must support calls from several threads at a time. If threads
share a file or a buffer, a few of many thousand samples can be wrong. Paceline therefore checks the samples in three
ways:

- The equivalence check compares all inputs with those of the baseline. Before this check, all threads load the
  same samples again and again for two seconds, and each sample must be the same every time.
- In each trial and in each run with the recipe, some samples are loaded again while no other thread loads, and
  compared: one in each of the first 4 batches, and later as many as 2% of the time allow.
- If a sample differs, `loader.threads` is switched off at once, and the output says so. Batches that were used before
  may contain wrong samples.

If the program changes its dataset within an epoch, `loader.threads` is switched off too, because threads load batches
before training asks for them.

## Safety class

The safety class is exact if loading samples draws no random numbers. The safety class is semantic if loading samples
draws random numbers: the loader threads and training share the random number generators, so the random numbers that a
thread gets differ from run to run.

## What it sets

This remedy sets `loader.threads` and, if the loader has workers, `loader.num_workers = 0`.

## How it is confirmed

Paceline records `loader.threads` as applied when a thread loads a batch. The setting has no effect on an
`IterableDataset`, because only one reader can iterate it. The setting also has no effect on a dataset that keeps a file
open, because each thread would change the file position of the other threads.

## In the source

The `DataLoader` of torch has no option for loader threads, so the setting can only be applied with a recipe.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    loader = context.loader
    if loader is None or context.streams or (context.waiting is None and not loader.threads):
        return []
    wanted = _beside(loader, context.cores) if loader.threads else [_first(context, loader)]
    return [
        Candidate(
            remedy="loader.threads",
            recipe={"loader": {**without_workers(loader), "threads": threads}},
            safety="semantic" if loader.draws_random else "exact",
            predicted=_predicted(context, loader, threads),
            why="with threads, batches are not copied between processes",
        )
        for threads in wanted
    ]


def _first(context: DiagnosisContext, loader: LoaderBreakdown) -> int:
    """Return the first number of threads to try. Later trials halve and double this number.

    Threads that wait use no core, so the next power of 2 above 2.5 times the predicted best number is safe. Threads
    that compute take cores from training, so the first number is the smallest that keeps up with training, given the
    CPU time of a batch.
    """
    supply = context.supply
    if not _waits(loader):
        return min(context.cores, max(1, math.ceil(supply.make_cpu_s / max(supply.compute_s, 1e-9) - _KEEPS_UP)))
    return 2 ** math.ceil(math.log2(max(2.0, _SPARE * supply.best_workers())))


def _beside(loader: LoaderBreakdown, cores: int) -> list[int]:
    """Return half and twice the number of threads, or only half if computing threads already use all cores."""
    fewer, more = loader.threads // 2, 2 * loader.threads
    crowded = not _waits(loader) and loader.threads >= cores
    return [threads for threads in (fewer, more) if threads and not (crowded and threads == more)]


def _waits(loader: LoaderBreakdown) -> bool:
    return loader.blocked >= 0.5


def _predicted(context: DiagnosisContext, loader: LoaderBreakdown, threads: int) -> Gain:
    """Return the predicted gain of loading with this number of threads.

    Threads that wait are as fast as workers, and batches are not copied between processes. For threads that compute, it
    is unknown whether they release the interpreter lock, so the lower end is 1. If the loader already uses threads,
    fewer threads can gain only because they compete less for the cores.
    """
    supply = context.supply
    if loader.threads:
        return Gain(
            low=1.0,
            high=max(1.05, supply.gain_with(threads).high * supply.warmer, _relieved(context, loader, threads)),
        )
    makers = max(threads, loader.makers)
    shared = replace(supply, to_send=0.0)  # threads send nothing
    gain, unburdened = shared.gain_with(makers), replace(shared, hand_over_s=0.0).gain_with(makers)
    high = max(gain.high, unburdened.high)
    return Gain(low=gain.low if _waits(loader) else 1.0, high=max(1.05, _UNBURDENED * high * supply.warmer))


def _relieved(context: DiagnosisContext, loader: LoaderBreakdown, threads: int) -> float:
    """Return the largest gain of fewer threads if loader and training threads together exceed the cores, else 1.0."""
    own = int(context.facts.first.record.meta.get("threads") or 0)
    if _waits(loader) or loader.threads + own <= context.cores:
        return 1.0
    return (loader.threads + own) / max(threads + own, context.cores)


REMEDY = TunableRemedy(id="loader.threads", page=PAGE, candidates=_candidates)
