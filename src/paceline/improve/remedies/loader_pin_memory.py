"""loader.pin_memory: batches are loaded into pinned memory."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
The loader puts batches into pinned memory, from which a CUDA device copies directly. Only with pinned memory does
`non_blocking=True` have an effect. `tune` proposes this change if copies to the device take time and the loader returns
pageable (ordinary) memory.

## Safety class

Exact: training gets the same batches.

## What it sets

`loader.pin_memory = true`.

## How it is confirmed

Confirmed when a loop over a loader begins after the program has used CUDA. A loop that begins earlier gets pageable
memory: pinning would initialise CUDA, and the program could not fork processes that use it any more.

## In the source

Write `DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    predicted = situation.gain_of("loader.pin_memory")
    if predicted is None or situation.setting("loader", "pin_memory"):
        return []
    return [
        Candidate(
            remedy="loader.pin_memory",
            recipe={"loader": {"pin_memory": True}},
            safety="exact",
            predicted=predicted,
            why=f"copies to the device take {situation.facts.shares['transfer']:.0%} of the time",
        )
    ]


REMEDY = Remedy(id="loader.pin_memory", page=PAGE, candidates=_candidates)
