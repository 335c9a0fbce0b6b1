"""loader.persistent: workers stay alive between epochs."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain import words
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
The loader starts its workers once instead of in every epoch. At each epoch, Paceline draws the random number that torch
would draw to start workers, so the shuffled order stays the same. A loader that the program creates again in each epoch
cannot keep its workers; create the loader before the epoch loop.

## Safety class

Exact if making samples draws no random numbers. Resampled if making samples draws from the global generators of Python,
numpy or torch: workers that are kept continue their random sequence, but new workers would get a new seed. Semantic if
the dataset keeps a random generator of its own.

## What it sets

`loader.persistent_workers = true`.

## How it is confirmed

Confirmed when a loader with workers is created with `persistent_workers=True`.

## In the source

Write `DataLoader(..., persistent_workers=True)`, and create the loader once. This argument alone changes the shuffled
order from the second epoch on. The patch of `--diff` keeps the order, because it draws the random number that torch
would draw to start new workers.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    restart = situation.finding("DATA006")
    loader = situation.loader
    if restart is None or loader is None or not loader.workers:
        return []
    return [
        Candidate(
            remedy="loader.persistent",
            recipe={"loader": {"persistent_workers": True}},
            safety=words.safety_of_worker_draws(loader),
            predicted=restart.gain,
            why=restart.summary,
        )
    ]


REMEDY = Remedy(id="loader.persistent", page=PAGE, candidates=_candidates)
