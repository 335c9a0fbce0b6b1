"""precision.autocast: models compute in bf16, the loss in single precision."""

from __future__ import annotations

from paceline.improve.measured import capability
from paceline.improve.remedies import Remedy, switch

PAGE = """
Matrix work in bfloat16 under autocast: half the bytes, and on hardware that has it several times the speed. The loss is
computed outside of it, in single precision; parameters and optimizer stay as they are.

## Safety class

Numeric: the same algorithm, other rounding.

## What it sets

`precision.autocast = "bf16"`.

## How it is confirmed

A model's forward ran in bf16. Not in force where the program uses autocast itself.

## In the source

`with torch.autocast("cuda", dtype=torch.bfloat16):` around the forward, `"cpu"` on a CPU; the loss outside of it, of
`output.float()`.
"""

REMEDY = Remedy(
    id="precision.autocast",
    page=PAGE,
    candidates=switch(
        "precision.autocast",
        "precision.autocast",
        "bf16",
        gain_of="precision.bf16",
        why="models compute in bf16, the loss in single precision",
        when=lambda situation: not situation.on_cuda or capability(situation) >= 8.0,
    ),
)
