"""ddp.gradient_as_bucket_view: gradients are views of the communication buckets."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext, reduces_gradients
from paceline.tune.remedies import TunableRemedy

PAGE = """
With `ddp.gradient_as_bucket_view`, the gradients are views of the communication buckets that the ranks exchange. With
views, the program does not copy gradients before and after the exchange, and does not need memory for a second set of
gradients. If several ranks exchange gradients, `tune` proposes `ddp.gradient_as_bucket_view`. A program that calls
`detach_()` on gradients fails with `ddp.gradient_as_bucket_view`, and `tune` then reports the trial as failed.

## Safety class

The safety class is exact, because the sums are the same and are only stored in another place.

## What it sets

This remedy sets `ddp.gradient_as_bucket_view = true`.

## How it is confirmed

Paceline records `ddp.gradient_as_bucket_view` as applied when the program wraps a model in DistributedDataParallel with
`gradient_as_bucket_view=True`.

## In the source

Write `DistributedDataParallel(..., gradient_as_bucket_view=True)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    if not reduces_gradients(context) or context.setting("ddp", "gradient_as_bucket_view"):
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


REMEDY = TunableRemedy(id="ddp.gradient_as_bucket_view", page=PAGE, candidates=_candidates)
