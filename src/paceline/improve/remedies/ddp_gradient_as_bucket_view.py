"""ddp.gradient_as_bucket_view: gradients are views of the communication buckets."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.measured import reduces_gradients
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
Gradients become views of the buckets that ranks exchange. Gradients are then not copied before and after the exchange,
and the memory for a second set of gradients is saved. `tune` proposes this change if several ranks exchange gradients.
A program that calls `detach_()` on gradients fails with this setting; `tune` then reports the trial as failed.

## Safety class

Exact: the sums are the same, but stored at another place.

## What it sets

`ddp.gradient_as_bucket_view = true`.

## How it is confirmed

Confirmed when a model is wrapped in DistributedDataParallel with `gradient_as_bucket_view=True`.

## In the source

Write `DistributedDataParallel(..., gradient_as_bucket_view=True)`.
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
            why="gradients are no longer copied before and after the exchange",
            aims=("time", "memory"),
        )
    ]


REMEDY = Remedy(id="ddp.gradient_as_bucket_view", page=PAGE, candidates=_candidates)
