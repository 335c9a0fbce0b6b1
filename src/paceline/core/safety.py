"""The four safety classes of a remedy, from the safest to the least safe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Safety = Literal["exact", "resampled", "numeric", "semantic"]

SAFETY_CLASSES: tuple[Safety, ...] = get_args(Safety)
"""All classes, the safest first."""

SAFETY_MEANING: Mapping[Safety, str] = {
    "exact": "Training computes the same numbers.",
    "resampled": "Training sees the same samples in the same order, but other random numbers are drawn for them.",
    "numeric": "Training runs the same algorithm with other rounding.",
    "semantic": "Training runs another algorithm, such as a larger batch or a lower learning rate.",
}


def least_safe(classes: Iterable[Safety]) -> Safety:
    """Return the least safe of some classes; ``exact`` if there are none."""
    return max(classes, key=SAFETY_CLASSES.index, default="exact")
