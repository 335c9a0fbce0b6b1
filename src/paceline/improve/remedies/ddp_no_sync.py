"""ddp.no_sync: of several backwards in a step, only the last one exchanges gradients."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
A program that accumulates gradients over micro-steps needs them exchanged once, before the optimizer steps. How many
backwards a step has is learnt from the first steps; all but the last then leave the exchange out. When a step comes
sooner (the rest at the end of an epoch), what is missing is exchanged before gradients are clipped or used. Proposed
where gradients are exchanged on every micro-step.

## Safety class

Numeric: gradients are summed over micro-steps first and over ranks then, and rounded otherwise.

## What it sets

`ddp.no_sync = true`.

## How it is confirmed

Two steps in a row had the same number of backwards, and more than one. Not in force where the program leaves out
exchanges itself, several models exchange gradients, or a model looks for unused parameters.

## In the source

`with model.no_sync():` around forward and backward of all micro-steps but the last.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    often = situation.finding("COMM004")
    if often is None or situation.setting("ddp", "no_sync"):
        return []
    return [
        Candidate(
            remedy="ddp.no_sync",
            recipe={"ddp": {"no_sync": True}},
            safety="numeric",
            predicted=situation.gain_of("ddp.no_sync"),
            why=often.summary,
        )
    ]


REMEDY = Remedy(id="ddp.no_sync", page=PAGE, candidates=_candidates)
