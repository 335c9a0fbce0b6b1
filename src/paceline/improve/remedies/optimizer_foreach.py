"""optimizer.foreach: parameters are updated by operations on many tensors at a time."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch
from paceline.improve.situation import Situation

PAGE = """
`foreach=True` for optimizers of torch that have it, where the program chose neither fused nor foreach: the same
operations, each on many tensors at a time. Proposed where updates take a visible share and run tensor by tensor, after
`optimizer.fused` where there is that. On a CUDA device it is what torch does by itself.

## Safety class

Numeric: the same algorithm, other rounding.

## What it sets

`optimizer.foreach = true`.

## How it is confirmed

An optimizer of torch's was made with it.

## In the source

`foreach=True` where the optimizer is made.
"""


def _worth_it(situation: Situation) -> bool:
    return situation.gain_of("optimizer.foreach") is not None and not situation.setting("optimizer", "fused")


REMEDY = Remedy(
    id="optimizer.foreach",
    page=PAGE,
    candidates=switch(
        "optimizer.foreach",
        "optimizer.foreach",
        True,
        gain_of="optimizer.foreach",
        why="many parameters are updated at a time",
        when=_worth_it,
    ),
)
