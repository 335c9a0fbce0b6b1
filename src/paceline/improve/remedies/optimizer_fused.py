"""optimizer.fused: all parameters are updated in one pass."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch

PAGE = """
`fused=True` for optimizers of torch that have it, where the program chose neither fused nor foreach.

Numeric: the same algorithm, other rounding.
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
    ),
)
