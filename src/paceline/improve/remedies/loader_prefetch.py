"""loader.prefetch: more batches made ahead by each worker."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Gain
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
A longer queue rides out samples that take far longer than the rest. It does not help a loader that is too slow on
average. Memory grows by a batch per worker and step of the factor.

## Safety class

Exact: the same batches in the same order.

## What it sets

`loader.prefetch_factor`: four times what it was.

## How it is confirmed

A loader with workers was made with it.

## In the source

`DataLoader(..., prefetch_factor=8)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    jitter, loader = situation.finding("DATA008"), situation.loader
    if jitter is None or loader is None or not loader.workers:
        return []
    now = int(str(loader.settings.get("prefetch_factor") or 2))
    return [
        Candidate(
            remedy="loader.prefetch",
            recipe={"loader": {"prefetch_factor": min(64, 4 * now)}},
            safety="exact",
            predicted=Gain(low=1.0, high=jitter.gain.high) if jitter.gain else None,
            why=jitter.summary,
        )
    ]


REMEDY = Remedy(id="loader.prefetch", page=PAGE, candidates=_candidates)
