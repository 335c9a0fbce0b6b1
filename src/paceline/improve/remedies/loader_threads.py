"""loader.threads: batches made in threads of the training process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from paceline.explain.model import Gain, LoaderBreakdown
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_SPARE = 2.5
_KEEPS_UP = 0.1  # of a thread: batches that nobody hands over take less CPU time than they did
# Nothing is pickled, sent and unpacked any more, by processes that wanted cores too: on large arrays searches measured
# 1.12 to 1.9 times what the model without this said, by machine (benchmarks/tune_programs/volumes.py).
_UNBURDENED = 2.1

PAGE = """
Threads make batches ahead inside of the training process: nothing is pickled or copied between processes, and no
process has to start. It helps where making a sample waits or lets the interpreter go (decoders, numpy on large arrays,
files); where it holds the interpreter, it does not, and is not kept. The dataset has to bear being asked by several
threads at a time; the samples are compared with the baseline's.

## Safety class

Exact, unless making samples draws random numbers. Semantic then.

## What it sets

`loader.threads` and `loader.num_workers = 0`.

## How it is confirmed

Threads have made a batch. Refused for a stream, which has one reader, and for a dataset that holds an open file:
threads would move its place under each other.

## In the source

No such setting in torch: it stays in the recipe.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    loader = situation.loader
    if loader is None or situation.streams or (situation.waiting is None and not loader.threads):
        return []
    wanted = _beside(loader, situation.cores) if loader.threads else [_first(situation, loader)]
    return [
        Candidate(
            remedy="loader.threads",
            recipe={"loader": {"num_workers": 0, "threads": threads}},
            safety="semantic" if loader.draws_random else "exact",
            predicted=_predicted(situation, loader, threads),
            why="nothing has to be handed over between processes",
        )
        for threads in wanted
    ]


def _first(situation: Situation, loader: LoaderBreakdown) -> int:
    """Return how many threads to begin with; from there twice and half as many are tried.

    Where they wait, some to spare cost nothing: a power of 2. Where they compute, as many as keep up with training by
    the CPU time of batches, since each more takes cores from it.
    """
    supply = situation.supply
    if not _waits(loader):
        return min(situation.cores, max(1, math.ceil(supply.make_cpu_s / max(supply.compute_s, 1e-9) - _KEEPS_UP)))
    return 2 ** math.ceil(math.log2(max(2.0, _SPARE * supply.best_workers())))


def _beside(loader: LoaderBreakdown, cores: int) -> list[int]:
    """Return what to go on with: half and twice as many; more that compute than there are cores can only be fewer."""
    fewer, more = loader.threads // 2, 2 * loader.threads
    crowded = not _waits(loader) and loader.threads >= cores
    return [threads for threads in (fewer, more) if threads and not (crowded and threads == more)]


def _waits(loader: LoaderBreakdown) -> bool:
    return loader.blocked >= 0.5


def _predicted(situation: Situation, loader: LoaderBreakdown, threads: int) -> Gain:
    """Threads that wait do what workers do, and hand nothing over; whether others free the interpreter is not known.

    From threads on, nothing is handed over already. What fewer of them gain is less crowding.
    """
    supply = situation.supply
    if loader.threads:
        return Gain(
            low=1.0,
            high=max(1.05, supply.gain_with(threads).high * supply.warmer, _relieved(situation, loader, threads)),
        )
    makers = max(threads, loader.makers)
    gain, unburdened = supply.gain_with(makers), replace(supply, hand_over_s=0.0).gain_with(makers)
    high = max(gain.high, unburdened.high)
    return Gain(low=gain.low if _waits(loader) else 1.0, high=max(1.05, _UNBURDENED * high * supply.warmer))


def _relieved(situation: Situation, loader: LoaderBreakdown, threads: int) -> float:
    """Return what fewer threads may bring at most where they and those of the training take turns on the cores."""
    own = int(situation.facts.first.record.meta.get("threads") or 0)
    if _waits(loader) or loader.threads + own <= situation.cores:
        return 1.0
    return (loader.threads + own) / max(threads + own, situation.cores)


REMEDY = Remedy(id="loader.threads", page=PAGE, candidates=_candidates)
