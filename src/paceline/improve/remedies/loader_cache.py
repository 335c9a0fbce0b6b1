"""loader.cache: samples that were made once are kept in memory."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Gain
from paceline.explain.supply import Supply
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_ALONE = 5.0  # times
PAGE = """
From the second epoch on, samples come from memory. Proposed where training waits for data whose making draws no random
numbers; at most 40 % of the memory that is free is used, by all ranks of a machine together, and what does not fit is
made anew. The first epoch gains nothing, so a trial has to reach the second, and what is measured begins there: where
epochs are long, it is not tried. A collate function other than torch's own is given copies, which it may change.

## Safety class

Exact: the first samples are made twice, and in each further epoch some that are kept once more. Where they differ,
nothing is kept from there on.

## What it sets

`loader.cache = true` and `loader.num_workers = 0`.

## How it is confirmed

The first samples came out the same twice. Refused where they did not, and for a dataset that fetches many at a time.

## In the source

A dataset around the program's own that keeps what that made, in up to 40 % of the memory that is free at the start. It
does not look whether samples become others later.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    loader = situation.loader
    if situation.waiting is None or loader is None or situation.streams or loader.draws_random:
        return []
    if situation.setting("loader", "cache") or situation.epoch_steps is None:
        return []
    return [
        Candidate(
            remedy="loader.cache",
            recipe={"loader": {"num_workers": 0, "cache": True}},
            safety="exact",
            predicted=_predicted(situation.supply),
            why="a sample is the same each time it is made",
            warmup_steps=situation.epoch_steps,
        )
    ]


def _predicted(supply: Supply) -> Gain:
    """Samples that need not be made free the cores too: what is left is the work of the training process.

    No workers are started any more, and work that need not share cores and caches with them was up to five times as
    fast (benchmarks/tune_programs/repeats.py).
    """
    own_cpu_s = max(0.0, supply.other_cpu_s - supply.restart_s)
    left = max(own_cpu_s / supply.cores / supply.warmer, supply.compute_s / _ALONE, 1e-9)
    high = max(1.05, supply.step_s / left)
    return Gain(low=1 + 0.3 * (min(high, 1 / max(1 - supply.wait_share, 0.01)) - 1), high=high)


REMEDY = Remedy(id="loader.cache", page=PAGE, candidates=_candidates)
