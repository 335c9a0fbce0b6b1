"""ddp.static_graph: ranks are told that every step uses the same parameters."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.measured import communication, reduces_gradients
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_LEAST_SHARE = 0.05  # of step time in communication

PAGE = """
DistributedDataParallel need not look in every step which parameters take part, and can plan the exchange once. Only for
models whose graph is the same in every step; one that branches fails or hangs, and its trial with it. Proposed where
several ranks exchange gradients and wait for it.

## Safety class

Numeric: buckets may be cut otherwise, and sums made in another order.

## What it sets

`ddp.static_graph = true`.

## How it is confirmed

A model was wrapped with it.

## In the source

`DistributedDataParallel(..., static_graph=True)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    waits = reduces_gradients(situation) and communication(situation) >= _LEAST_SHARE
    if not waits or situation.setting("ddp", "static_graph"):
        return []
    return [
        Candidate(
            remedy="ddp.static_graph",
            recipe={"ddp": {"static_graph": True}},
            safety="numeric",
            predicted=None,
            why=f"ranks exchange gradients for {communication(situation):.0%} of the time",
        )
    ]


REMEDY = Remedy(id="ddp.static_graph", page=PAGE, candidates=_candidates)
