"""memory.expandable_segments: blocks of GPU memory grow in place."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
Torch's allocator takes GPU memory in segments that can grow, so that tensors of ever other sizes find a place in what
is there. Proposed where far more is reserved than was ever used at one time: it helps where allocations have to be
tried again, and against running out of memory that is there in pieces.

## Safety class

Exact: the same numbers, elsewhere in memory.

## What it sets

`allocator.expandable_segments = true`, which goes into the environment before the program starts, beside what is set
there already.

## How it is confirmed

At the first optimizer step the allocator has taken such a segment on the device that trains.

## In the source

Not in the source: `PYTORCH_ALLOC_CONF=expandable_segments:True` in the environment (`PYTORCH_CUDA_ALLOC_CONF` is its
older name).
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    torn = situation.finding("MEM003")
    if torn is None or situation.setting("allocator", "expandable_segments"):
        return []
    return [
        Candidate(
            remedy="memory.expandable_segments",
            recipe={"allocator": {"expandable_segments": True}},
            safety="exact",
            predicted=None,
            why=torn.summary,
        )
    ]


REMEDY = Remedy(id="memory.expandable_segments", page=PAGE, candidates=_candidates)
