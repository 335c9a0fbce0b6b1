"""optimizer.fused: all parameters are updated in one pass."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, at_most, switch
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


def _most(situation: Situation) -> float:
    """No more can be gained than the optimizer's share of a step."""
    return 1 / max(0.1, 1 - situation.facts.shares["optimizer"])


REMEDY = Remedy(
    id="optimizer.fused",
    page=PAGE,
    candidates=at_most(
        switch(
            "optimizer.fused",
            "optimizer.fused",
            True,
            gain_of="optimizer.fused",
            why="all parameters are updated in one pass",
            when=_open,
        ),
        _most,
    ),
)
