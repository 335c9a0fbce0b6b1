"""loader.pin_memory: batches wait for the device in memory that it can read itself."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
From pinned memory a CUDA device copies without the driver's detour, and `non_blocking=True` takes effect. Proposed
where copies to the device take time and the loader hands out ordinary memory.

## Safety class

Exact: the same batches.

## What it sets

`loader.pin_memory = true`.

## How it is confirmed

A loader was made with it, and there is a device to pin memory for.

## In the source

`DataLoader(..., pin_memory=True)`, and `batch.to(device, non_blocking=True)`.
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
