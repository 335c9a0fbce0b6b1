"""memory.checkpoint: activations of repeated blocks are computed again instead of kept."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
Repeated blocks (the layers of a transformer, the blocks of a residual network) keep their input only; in backward each
is computed again. All of them (`checkpoint_every = 1`), every second one, or as few as it takes to keep half of the
bytes (`activation_budget = 0.5`, weighed in the first forward). It costs up to a forward a step, so it is tried with
`--goal memory` only.

## Safety class

Exact: the same random numbers are drawn again, and BatchNorm counts a batch once.

## What it sets

`memory.checkpoint_every = 1` or `2`, or `memory.activation_budget = 0.5`.

## How it is confirmed

Blocks of a model ran that way in training. Refused where the model has no repeated blocks.

## In the source

`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` instead of `block(x)` in the model's forward.
"""

_TRIED: Sequence[dict[str, object]] = ({"checkpoint_every": 1}, {"checkpoint_every": 2}, {"activation_budget": 0.5})


def _candidates(situation: Situation) -> Sequence[Candidate]:
    if any(situation.setting("memory", key) for settings in _TRIED for key in settings):
        return []
    if situation.setting("compute", "compile"):
        return []
    return [
        Candidate(
            remedy="memory.checkpoint",
            recipe={"memory": settings},
            safety="exact",
            predicted=None,
            why="blocks that are computed again need not be kept",
            aims=("memory",),
        )
        for settings in _TRIED
    ]


REMEDY = Remedy(id="memory.checkpoint", page=PAGE, candidates=_candidates)
