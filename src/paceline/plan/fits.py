"""Does it fit? A probability, since a prediction of memory scatters.

The logarithm of what is needed over what is predicted scatters normally; its spread is that of rows that the fit had
not seen. A half is the dividing line; `SURE` is what a plan is chosen by.
"""

from __future__ import annotations

import math

from paceline.plan.columns import Floats

SURE = 0.9


def probability(needed_bytes: float, available_bytes: float, spread: float) -> float:
    """Return how likely a predicted peak (with context) stays within a device."""
    return 0.5 * (1 + math.erf(math.log(available_bytes / needed_bytes) / spread / math.sqrt(2)))


def probabilities(needed_bytes: Floats, available_bytes: Floats, spread: float) -> list[float]:
    """Return that of many."""
    return [probability(*pair, spread) for pair in zip(needed_bytes.tolist(), available_bytes.tolist(), strict=True)]
