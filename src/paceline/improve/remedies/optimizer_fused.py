"""optimizer.fused: all parameters are updated in one pass."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch

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

REMEDY = Remedy(
    id="optimizer.fused",
    page=PAGE,
    candidates=switch(
        "optimizer.fused",
        "optimizer.fused",
        True,
        gain_of="optimizer.fused",
        why="all parameters are updated in one pass",
        when=lambda situation: not situation.setting("optimizer", "foreach") and situation.optimizers_are_torchs_choice,
    ),
)
