"""compute.channels_last: convolutions read memory in order."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch

PAGE = """
Pictures and the weights of convolutions in channels-last memory.

Numeric: the same algorithm, other rounding.
"""

REMEDY = Remedy(
    id="compute.channels_last",
    page=PAGE,
    candidates=switch(
        "compute.channels_last",
        "compute.channels_last",
        True,
        gain_of="compute.channels_last",
        why="convolutions read memory in order",
    ),
)
