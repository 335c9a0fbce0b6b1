"""loader.persistent: workers that live on from epoch to epoch."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
Workers are started once, not in every epoch. What torch draws at each start is drawn all the same, so that shuffling
stays what it was. A loader that is built anew each time it is used cannot keep its workers: mend that in the source.

## Safety class

Exact, unless making samples draws random numbers: kept workers go on where they were, new ones begin again.
Semantic then.

## What it sets

`loader.persistent_workers = true`.

## How it is confirmed

A loader with workers was made.

## In the source

`DataLoader(..., persistent_workers=True)`, made once. By itself it shifts the shuffle from the second epoch on: the
patch of `--diff` makes it a loader that draws in each epoch what new workers would.
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
            safety="semantic" if loader.draws_random else "exact",
            predicted=restart.gain,
            why=restart.summary,
        )
    ]


REMEDY = Remedy(id="loader.persistent", page=PAGE, candidates=_candidates)
