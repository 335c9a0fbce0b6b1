"""ddp.gradient_as_bucket_view: gradients live in the buffers that are exchanged."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.measured import reduces_gradients
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
Gradients are views of the buckets in which they are exchanged: a copy in each direction is saved, and the memory of all
gradients once. Proposed where several ranks exchange gradients. A program that calls `detach_()` on gradients fails,
and its trial with it.

## Safety class

Exact: the same sums, kept elsewhere.

## What it sets

`ddp.gradient_as_bucket_view = true`.

## How it is confirmed

A model was wrapped with it.

## In the source

`DistributedDataParallel(..., gradient_as_bucket_view=True)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    if not reduces_gradients(situation) or situation.setting("ddp", "gradient_as_bucket_view"):
        return []
    return [
        Candidate(
            remedy="ddp.gradient_as_bucket_view",
            recipe={"ddp": {"gradient_as_bucket_view": True}},
            safety="exact",
            predicted=None,
            why="gradients need not be copied to be exchanged",
            aims=("time", "memory"),
        )
    ]


REMEDY = Remedy(id="ddp.gradient_as_bucket_view", page=PAGE, candidates=_candidates)
