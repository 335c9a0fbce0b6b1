"""memory.micro_batches: a batch goes through the model in parts."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
A batch goes through the model in parts, and only one part's activations exist at a time. The loss is computed on the
whole output, so whatever it averages over stays what it was: samples, tokens, what a mask leaves, ragged last batches.
It costs a forward a step. Where memory is what holds a larger batch back, accumulating gradients in the source costs
none. Not where BatchNorm takes statistics of the batch, or where the model returns its own loss. Tried with
`--goal memory`; doubled while it pays.

## Safety class

Numeric: sums are split otherwise, and rounded otherwise; dropout draws the same numbers in another order.

## What it sets

`memory.micro_batches`: 2, 4, and on.

## How it is confirmed

A model took a batch in parts. Refused with the reason where it cannot.

## In the source

No such setting in torch: it stays in the recipe. Gradients accumulated over parts of a batch save as much.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    now = int(str(situation.setting("memory", "micro_batches") or 1))
    batch = situation.diagnosis.batch_size
    if batch is None or batch < 4 * now or situation.distributed:
        return []
    return [
        Candidate(
            remedy="memory.micro_batches",
            recipe={"memory": {"micro_batches": parts}},
            safety="numeric",
            predicted=None,
            why="only a part of a batch has activations at a time",
            aims=("memory",),
        )
        for parts in (4 * now, 2 * now)
    ]


REMEDY = Remedy(id="memory.micro_batches", page=PAGE, candidates=_candidates)
