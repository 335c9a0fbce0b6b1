"""memory.micro_batches: each batch goes through the model in parts."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
A batch goes through the model in several parts, so only the activations of one part are in memory at a time. The loss
is computed on the whole output, so any average over samples, tokens or masked elements stays the same. The setting
needs one more forward pass per step. Gradient accumulation in the source saves the same amount of memory without the
additional forward pass.

The setting does not work if BatchNorm computes statistics of the batch, or if the model returns its own loss. `tune`
tries `memory.micro_batches` only with `--goal memory`, and doubles the number of parts as long as more parts save
memory.

## Safety class

The safety class is numeric, because sums are added in another order, and dropout draws the same random numbers in
another order.

## What it sets

This remedy sets `memory.micro_batches` to 2, 4 and so on.

## How it is confirmed

Paceline records `memory.micro_batches` as applied when a model processes a batch in parts. If a model cannot process
its batch in parts, the trial reports the reason.

## In the source

Torch has no option that computes one batch in several parts, so the setting can only be applied with a recipe. In the
source, use gradient accumulation over parts of a batch instead.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    now = int(str(context.setting("memory", "micro_batches") or 1))
    batch = context.diagnosis.batch_size
    if batch is None or batch < 4 * now or context.distributed:
        return []
    return [
        Candidate(
            remedy="memory.micro_batches",
            recipe={"memory": {"micro_batches": parts}},
            safety="numeric",
            predicted=None,
            why="only the activations of one part of the batch are in memory at a time",
            aims=("memory",),
        )
        for parts in (4 * now, 2 * now)
    ]


REMEDY = TunableRemedy(id="memory.micro_batches", page=PAGE, candidates=_candidates)
