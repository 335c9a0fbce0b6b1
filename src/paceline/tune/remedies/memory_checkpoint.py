"""memory.checkpoint: activations of repeated blocks are recomputed."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
Repeated blocks of the model, such as the layers of a transformer, store only their input. The backward pass recomputes
the activations of the repeated blocks (activation checkpointing). `tune` tries to recompute all blocks
(`checkpoint_every = 1`), every second block (`checkpoint_every = 2`), and the smallest number of blocks that halves the
stored activations (`activation_budget = 0.5`). Recomputing takes as much time as up to one more forward pass per step,
so `tune` tries `memory.checkpoint` only with `--goal memory`.

## Safety class

The safety class is exact: the recomputed forward pass draws the same random numbers, and BatchNorm counts each batch
only once.

## What it sets

This remedy sets `memory.checkpoint_every = 1` or `2`, or `memory.activation_budget = 0.5`.

## How it is confirmed

Paceline records activation checkpointing as applied when it recomputes blocks of a model in training. If the model has
no repeated blocks, the setting has no effect.

## In the source

In the model's `forward` method, write `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` instead of
`block(x)`. Do not use `torch.utils.checkpoint` for blocks with BatchNorm, because they would update their running
statistics twice per batch.
"""

_TRIED: Sequence[dict[str, object]] = ({"checkpoint_every": 1}, {"checkpoint_every": 2}, {"activation_budget": 0.5})


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    if any(context.setting("memory", key) for settings in _TRIED for key in settings):
        return []
    if context.setting("compute", "compile"):
        return []
    return [
        Candidate(
            remedy="memory.checkpoint",
            recipe={"memory": settings},
            safety="exact",
            predicted=None,
            why="activations that are recomputed need no memory until the backward pass",
            aims=("memory",),
        )
        for settings in _TRIED
    ]


REMEDY = TunableRemedy(id="memory.checkpoint", page=PAGE, candidates=_candidates)
