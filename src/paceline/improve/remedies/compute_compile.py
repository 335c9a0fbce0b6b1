"""compute.compile: operators are fused and issued together."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch

PAGE = """
`torch.compile` of the model, in place: the keys of its state stay the same. The first steps take long, and each new
shape takes long again; warm-up is measured, not assumed.

Numeric: the same algorithm, other rounding.
"""

REMEDY = Remedy(
    id="compute.compile",
    page=PAGE,
    candidates=switch(
        "compute.compile",
        "compute.compile",
        "default",
        gain_of="compute.compile",
        why="operators are fused and issued together",
    ),
)
