"""ddp.static_graph: DDP assumes that every step uses the same parameters."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext, communication, reduces_gradients
from paceline.tune.remedies import TunableRemedy

_LEAST_SHARE = 0.05  # least share of step time in communication

PAGE = """
With `ddp.static_graph`, DistributedDataParallel assumes that every step uses the same parameters.
DistributedDataParallel then plans the gradient exchange once, instead of searching for unused parameters in each step.
The setting `ddp.static_graph` is only valid for models whose autograd graph never changes. If the autograd graph
changes, the program fails or hangs, and `tune` then reports the trial as failed. If exchanging gradients takes at
least 5% of the time, `tune` proposes `ddp.static_graph`.

## Safety class

The safety class is numeric: the parameters can be divided into other buckets, so sums are added in another order.

## What it sets

This remedy sets `ddp.static_graph = true`.

## How it is confirmed

Paceline records `ddp.static_graph` as applied when the program wraps a model in DistributedDataParallel with
`static_graph=True`.

## In the source

Write `DistributedDataParallel(..., static_graph=True)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    waits = reduces_gradients(context) and communication(context) >= _LEAST_SHARE
    if not waits or context.setting("ddp", "static_graph"):
        return []
    return [
        Candidate(
            remedy="ddp.static_graph",
            recipe={"ddp": {"static_graph": True}},
            safety="numeric",
            predicted=None,
            why=f"exchanging gradients takes {communication(context):.0%} of the time",
        )
    ]


REMEDY = TunableRemedy(id="ddp.static_graph", page=PAGE, candidates=_candidates)
