"""ddp.bucket_cap_mb: gradients are exchanged in larger or smaller pieces."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.measured import reduces_gradients
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_USUAL_MB = 25
_MOST_MB = 1600

PAGE = """
DistributedDataParallel exchanges gradients in buckets of 25 MB while backward goes on. Larger ones use the network
better, smaller ones start earlier. Proposed where ranks wait for communication: four times as much and a quarter; what
wins is taken four times further.

## Safety class

Numeric: with more than two ranks, sums are made in another order.

## What it sets

`ddp.bucket_cap_mb = 100` or `6`, then on in the direction that pays.

## How it is confirmed

A model was wrapped with it. Left alone where the program gives a size itself.

## In the source

`DistributedDataParallel(..., bucket_cap_mb=100)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    slow = situation.finding("COMM001")
    if slow is None or not reduces_gradients(situation):
        return []
    return [
        Candidate(
            remedy="ddp.bucket_cap_mb",
            recipe={"ddp": {"bucket_cap_mb": size}},
            safety="numeric",
            predicted=situation.gain_of("ddp.bucket_cap_mb"),
            why=slow.summary,
        )
        for size in _sizes(int(str(situation.setting("ddp", "bucket_cap_mb") or _USUAL_MB)))
    ]


def _sizes(now: int) -> list[int]:
    """Return the next sizes in MB: away from the usual one, and from there both ways."""
    larger = [4 * now] if _USUAL_MB <= now <= _MOST_MB // 4 else []
    smaller = [now // 4] if 4 <= now <= _USUAL_MB else []
    return larger + smaller


REMEDY = Remedy(id="ddp.bucket_cap_mb", page=PAGE, candidates=_candidates)
