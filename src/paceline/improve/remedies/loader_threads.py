"""loader.threads: batches made in threads of the training process."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Gain
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

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

Threads have made a batch. Refused for a stream, which has one reader.

## In the source

No such setting in torch: it stays in the recipe.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    loader = situation.loader
    if situation.waiting is None or loader is None or situation.streams or situation.setting("loader", "threads"):
        return []
    waits = loader.blocked >= 0.5
    threads = max(2, situation.supply.best_workers()) if waits else situation.cores
    high = situation.supply.gain_with(max(threads, loader.workers)).high
    return [
        Candidate(
            remedy="loader.threads",
            recipe={"loader": {"num_workers": 0, "threads": threads}},
            safety="semantic" if loader.draws_random else "exact",
            predicted=Gain(low=1.0, high=max(1.05, 1.1 * high)),
            why="nothing has to be handed over between processes",
        )
    ]


REMEDY = Remedy(id="loader.threads", page=PAGE, candidates=_candidates)
