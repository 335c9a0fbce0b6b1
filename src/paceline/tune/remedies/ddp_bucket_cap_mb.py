"""ddp.bucket_cap_mb: gradients are sent in larger or smaller buckets."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext, reduces_gradients
from paceline.tune.remedies import TunableRemedy

_USUAL_MB = 25
_MOST_MB = 1600

PAGE = """
DistributedDataParallel sends gradients in buckets of 25 MB while the backward pass continues. Larger buckets use the
network better, and smaller buckets can be sent earlier. If ranks wait for communication, `tune` proposes another bucket
size. `tune` tries four times and a quarter of the current bucket size, and continues in the direction that makes steps
faster.

## Safety class

The safety class is numeric: with more than two ranks, sums over ranks are added in another order.

## What it sets

This remedy sets `ddp.bucket_cap_mb`, first to 100 or 6.

## How it is confirmed

Paceline records `ddp.bucket_cap_mb` as applied when the program wraps a model in DistributedDataParallel with this
`bucket_cap_mb`. If the program passes a bucket size itself, Paceline does not change it.

## In the source

Write `DistributedDataParallel(..., bucket_cap_mb=100)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    slow = context.finding("COMM001")
    if slow is None or not reduces_gradients(context):
        return []
    return [
        Candidate(
            remedy="ddp.bucket_cap_mb",
            recipe={"ddp": {"bucket_cap_mb": size}},
            safety="numeric",
            predicted=context.gain_of("ddp.bucket_cap_mb"),
            why=slow.summary,
        )
        for size in _sizes(int(str(context.setting("ddp", "bucket_cap_mb") or _USUAL_MB)))
    ]


def _sizes(now: int) -> list[int]:
    """Return the next sizes to try in MB: both directions from the default size, otherwise further away from it."""
    larger = [4 * now] if _USUAL_MB <= now <= _MOST_MB // 4 else []
    smaller = [now // 4] if 4 <= now <= _USUAL_MB else []
    return larger + smaller


REMEDY = TunableRemedy(id="ddp.bucket_cap_mb", page=PAGE, candidates=_candidates)
