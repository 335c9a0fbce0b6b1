"""compute.channels_last: convolutions read memory in order."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch
from paceline.improve.situation import Situation

PAGE = """
Pictures and the weights of convolutions in channels-last memory. Not proposed where the profiled step has no
convolution.

## Safety class

Numeric: the same algorithm, other rounding.

## What it sets

`compute.channels_last = true`.

## How it is confirmed

A model with weights of four dimensions was changed before its first forward.

## In the source

`model.to(memory_format=torch.channels_last)`, and the same for its input.
"""


def _convolves(situation: Situation) -> bool:
    """Say whether a step has convolutions; where none was profiled, it may."""
    window = situation.facts.first.window
    return window is None or any("conv" in operator.name for operator in window.operators)


REMEDY = Remedy(
    id="compute.channels_last",
    page=PAGE,
    candidates=switch(
        "compute.channels_last",
        "compute.channels_last",
        True,
        gain_of="compute.channels_last",
        why="convolutions read memory in order",
        when=_convolves,
    ),
)
