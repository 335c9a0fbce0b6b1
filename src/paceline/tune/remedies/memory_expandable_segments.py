"""memory.expandable_segments: segments of GPU memory grow in place."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
Torch's memory allocator reserves GPU memory in segments that can grow, so tensors of changing sizes reuse the same
memory. Expandable segments avoid repeated allocation attempts and out-of-memory errors due to fragmentation. `tune`
proposes `memory.expandable_segments` if much more memory is reserved than was ever used at one time.

## Safety class

The safety class is exact, because training computes the same numbers at other memory addresses.

## What it sets

This remedy sets `allocator.expandable_segments = true`. Paceline adds the option `expandable_segments:True` to the
allocator settings in the environment before the program starts.

## How it is confirmed

Paceline checks `allocator.expandable_segments` at the first optimizer step. Paceline records the setting as applied if
the allocator has an expandable segment on the training device.

## In the source

Set `PYTORCH_ALLOC_CONF=expandable_segments:True` in the environment, not in the source. In older versions of torch, the
environment variable for the allocator is named `PYTORCH_CUDA_ALLOC_CONF`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    torn = context.finding("MEM003")
    if torn is None or context.setting("allocator", "expandable_segments"):
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


REMEDY = TunableRemedy(id="memory.expandable_segments", page=PAGE, candidates=_candidates)
