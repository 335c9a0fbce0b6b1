"""ddp.find_unused_parameters: DDP does not search for unused parameters."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext, reduces_gradients
from paceline.tune.remedies import TunableRemedy

PAGE = """
With `find_unused_parameters=True`, DistributedDataParallel walks through the autograd graph after each forward pass, to
find parameters that get no gradient. If every parameter gets a gradient in each step, this search is a waste of time.
`tune` proposes `ddp.find_unused_parameters` if the program asks for the search, and the search found no unused
parameter in any pass that DDP timed.

If a later step uses fewer parameters, for example because the model skips a layer, DDP ends the program with the error
`Expected to have finished reduction in the prior iteration`. DDP does not go on with wrong gradients.

## Safety class

The safety class is numeric. Without the search, DDP arranges its buckets by the order of the first backward pass. With
three or more ranks, gradients can then be added in another order.

## What it sets

This remedy sets `ddp.find_unused_parameters = false`.

## How it is confirmed

Paceline records `ddp.find_unused_parameters` as applied when the program wraps a model in DistributedDataParallel with
`find_unused_parameters=True`, and the model is wrapped without it.

## In the source

Remove `find_unused_parameters=True` from `DistributedDataParallel(...)`. In Lightning, use `strategy="ddp"`. In the
Hugging Face Trainer, pass `ddp_find_unused_parameters=False`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    known = context.setting("ddp", "find_unused_parameters") is not None or context.setting("ddp", "static_graph")
    if known or not reduces_gradients(context) or not _searches_in_vain(context):
        return []
    return [
        Candidate(
            remedy="ddp.find_unused_parameters",
            recipe={"ddp": {"find_unused_parameters": False}},
            safety="numeric",
            predicted=None,
            why="DDP searches for unused parameters in each step, and there are none",
        )
    ]


def _searches_in_vain(context: DiagnosisContext) -> bool:
    """Return whether DDP searches for unused parameters although no rank has had any."""
    timed = [one for rank in context.facts.ranks for one in rank.record.summary.get("exchange_times", ())]
    searching = [one for one in timed if one.get("searches_unused")]
    return bool(searching) and not any(one.get("unused_count") for one in searching)


REMEDY = TunableRemedy(id="ddp.find_unused_parameters", page=PAGE, candidates=_candidates)
