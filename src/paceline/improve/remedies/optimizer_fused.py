"""optimizer.fused: all parameters are updated in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.explain.model import Gain
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy, switch
from paceline.improve.situation import Situation

PAGE = """
`fused=True` for optimizers of torch that have it, where the program chose neither fused nor foreach.

## Safety class

Numeric: the same algorithm, other rounding.

## What it sets

`optimizer.fused = true`.

## How it is confirmed

An optimizer of torch's was made with it.

## In the source

`fused=True` where the optimizer is made.
"""


def _open(situation: Situation) -> bool:
    """Say whether some optimizer was made without saying how it walks over its parameters; or none is known."""
    known = situation.facts.first.record.summary.get("optimizers", ())
    chosen = known and all(one.get("fused") is not None or one.get("foreach") is not None for one in known)
    return not chosen and not situation.setting("optimizer", "foreach")


_SWITCHED = switch(
    "optimizer.fused",
    "optimizer.fused",
    True,
    gain_of="optimizer.fused",
    why="all parameters are updated in one pass",
    when=_open,
)


def _candidates(situation: Situation) -> Sequence[Candidate]:
    """Without a finding that says more, no more can be gained than the optimizer's share of a step."""
    bound = Gain(low=1.0, high=1 / max(0.1, 1 - situation.facts.shares["optimizer"]))
    return [one if one.predicted else replace(one, predicted=bound) for one in _SWITCHED(situation)]


REMEDY = Remedy(id="optimizer.fused", page=PAGE, candidates=_candidates)
