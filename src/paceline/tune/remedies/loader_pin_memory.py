"""loader.pin_memory: batches are loaded into pinned memory."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
The loader puts batches into pinned memory, from which a CUDA device copies directly. In copies to the GPU,
`non_blocking=True` has an effect only if the batch is in pinned memory. `tune` proposes `loader.pin_memory` if copies
to the GPU take a visible share of step time and the loader returns pageable (ordinary) memory.

## Safety class

The safety class is exact, because training gets the same batches.

## What it sets

This remedy sets `loader.pin_memory = true`.

## How it is confirmed

Paceline records this setting as applied when a loop over a loader begins after the program has used CUDA. A loop that
begins earlier gets pageable memory: pinning would initialise CUDA, and then the program could no longer fork processes
that use CUDA.

## In the source

Write `DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    predicted = context.gain_of("loader.pin_memory")
    if predicted is None or context.setting("loader", "pin_memory"):
        return []
    return [
        Candidate(
            remedy="loader.pin_memory",
            recipe={"loader": {"pin_memory": True}},
            safety="exact",
            predicted=predicted,
            why=f"copies to the GPU take {context.facts.shares['transfer']:.0%} of the time",
        )
    ]


REMEDY = TunableRemedy(id="loader.pin_memory", page=PAGE, candidates=_candidates)
