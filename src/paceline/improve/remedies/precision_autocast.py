"""precision.autocast: models compute in bf16, the loss in single precision."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch

PAGE = """
Matrix work in bfloat16 under autocast: half the bytes, and on hardware that has it several times the speed. The loss is
computed outside of it, in single precision; parameters and optimizer stay as they are.

Numeric: the same algorithm, other rounding.
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
    ),
)
