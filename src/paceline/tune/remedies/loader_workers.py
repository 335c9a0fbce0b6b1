"""loader.workers: another number of loader workers."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain import words
from paceline.explain.model import Gain, LoaderBreakdown
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

_WORTH = 1.02
_MOST_CROWD = 1.5
_WAITS = 0.5  # least share of batch preparation in which workers neither compute nor wait for a core

PAGE = """
Worker processes load batches while the model computes. If training waits for data, `tune` proposes another number of
workers. `tune` predicts the step time as the largest of three times: the compute time, the time to load a batch divided
by the number of workers, and the CPU time divided by the number of cores. `tune` first tries the smallest number of
workers whose predicted step time is within 3% of the best. If the loader has no workers yet, `tune` also tries twice
that number. If the loader already has workers, `tune` also tries twice and half their current number. If the workers
already use all CPU cores, `tune` only proposes fewer workers. If more workers compute than there are cores, `tune` also
tries as many workers as cores, one fewer, and half their number, even if training does not wait for data.

If the training process reads an `IterableDataset`, `tune` proposes one worker, which reads the samples in the same
order as before. With several workers, each worker would read all samples of an `IterableDataset`, unless the code of
the dataset divides the samples with `get_worker_info()`.

## Safety class

The safety class is exact if loading samples draws no random numbers.

The safety class is resampled if loading samples draws from the global random number generators of Python, numpy or
torch: the samples and their order stay the same, but each worker draws its own random numbers. To check a resampled
change, `tune` gives each sample the same random numbers in a run with and in a run without the change. Training in the
run with the change must be bitwise identical to training in the run without the change.

The safety class is semantic if the dataset has its own random number generator, because each worker would get a copy
that draws the same numbers. The safety class is also semantic if several workers would have to share one random number
generator.

If the program changes its dataset between epochs, new workers are started for the next epoch. If a loader had no
workers and the program changes its dataset within an epoch (a curriculum, weights of hard examples), the change has no
effect on the workers, so Paceline switches the setting off and says so.

## What it sets

This remedy sets `loader.num_workers` and `loader.persistent_workers = true`. For an `IterableDataset`, it sets only the
number of workers, so that each epoch starts with the current state of the dataset.

## How it is confirmed

Paceline records `loader.num_workers` as applied when a loader is created with this number of workers. For an
`IterableDataset`, Paceline only applies a change from no worker to one worker. The trial ends without a result if the
dataset stores its position between epochs in a counter, its own random number generator, an iterator or an open file.
In a worker, the copy of a dataset that stores its position would start again from the beginning in each epoch.

## In the source

Write `DataLoader(..., num_workers=8, persistent_workers=True)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    loader = context.loader
    # the cache is in the training process, so workers cannot use it
    if loader is None or loader.threads or context.setting("loader", "cache"):
        return []
    crowd = _crowd(context, loader)
    if context.waiting is None and crowd <= 1:
        return []
    return [
        Candidate(
            remedy="loader.workers",
            recipe={"loader": {"num_workers": workers} | ({} if context.streams else {"persistent_workers": True})},
            safety=words.safety_of_workers(loader, workers),
            predicted=_predicted(context, loader, workers, crowd if workers < loader.workers else 1.0),
            why=_why(context, loader),
        )
        for workers in _numbers(context, loader, crowd)
    ]


def _numbers(context: DiagnosisContext, loader: LoaderBreakdown, crowd: float) -> list[int]:
    """Return the numbers of workers to try, the most promising first."""
    supply, now, cores = context.supply, loader.workers, context.cores
    if context.streams:
        return [] if now else [1]
    fewer = list(dict.fromkeys(w for w in (cores, cores - 1, now // 2) if 0 < w < now))
    if context.finding("DATA002") is not None or context.waiting is None:
        return fewer
    best = supply.best_workers()
    wanted = {best, 2 * now or 2 * best, max(1, now // 2)} - {now, 0}
    # of two equally good numbers: workers that wait cost nothing, so more of them
    sign = -1 if loader.blocked >= _WAITS else 1
    promising = [w for w in wanted if supply.gain_with(w).high >= _WORTH]
    ordered = sorted(promising, key=lambda w: (supply.step_with(w), sign * w))
    return list(dict.fromkeys([*ordered, *(fewer if crowd > 1 else ())]))


def _crowd(context: DiagnosisContext, loader: LoaderBreakdown) -> float:
    """Return the largest factor by which fewer workers can speed up steps, because they compete less for the cores.

    Workers that mostly wait do not compete, so the factor is 1. If more workers compute than there are cores, the
    workers and the training process take turns on the cores. The factor is at most 1.5.
    """
    if loader.blocked >= _WAITS or loader.workers <= context.cores:
        return 1.0
    busy = loader.workers * (loader.on_cpu + loader.runnable) + 1
    return min(_MOST_CROWD, 1.0 + 0.5 * max(0.0, 1.0 - context.cores / busy))


def _why(context: DiagnosisContext, loader: LoaderBreakdown) -> str:
    if context.waiting is not None:
        return f"training waits {context.supply.wait_share:.0%} of its time for data"
    return f"{loader.workers} workers and training share {context.cores} cores"


def _predicted(context: DiagnosisContext, loader: LoaderBreakdown, workers: int, crowd: float) -> Gain:
    """Return the predicted gain of a number of workers; for the best number, the gain that the finding states.

    If workers mostly wait, larger numbers get the same prediction, because on a busy machine the model proposes too few
    workers. `crowd` is the result of `_crowd` for fewer workers, otherwise 1.
    """
    supply = context.supply
    stated = context.gain_of("loader.workers")
    best = 1 if context.streams else supply.best_workers()
    at_least = workers > best and loader.blocked >= _WAITS
    if stated is not None and crowd <= 1 and (workers == best or at_least):
        return stated
    gain = supply.gain_with(workers)
    return Gain(low=gain.low if crowd <= 1 else 1.0, high=max(gain.high, crowd))


REMEDY = TunableRemedy(id="loader.workers", page=PAGE, candidates=_candidates)
