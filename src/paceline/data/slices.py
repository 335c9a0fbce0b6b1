"""Which positions of the sequence does a rank take? What is left of it, dealt out sample by sample.

State is how many samples all ranks together have consumed: whatever their number was, and whatever it is now, what is
left is the rest of the same sequence, and nothing is lost or comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Ends = Literal["drop", "pad", "even"]


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A rank of some, and what a step of it takes."""

    rank: int
    world: int
    batch: int  # samples of a rank
    ends: Ends = "drop"  # a last step that is not full: left out, filled up from the beginning, or split evenly


def steps_left(samples: int, consumed: int, share: Slice) -> int:
    """Return how many steps are left of an epoch, the same for all ranks."""
    left, whole = samples - consumed, share.world * share.batch
    full, rest = divmod(max(0, left), whole)
    if share.ends == "drop":
        return full
    least = 1 if share.ends == "pad" else share.world  # evenly split, each rank has to get one
    return full + (rest >= least)


def positions(samples: int, consumed: int, share: Slice) -> Numbers:
    """Return the positions that a rank takes in the step that comes next; empty after the last one.

    Args:
        samples: Of the epoch.
        consumed: By all ranks together.
        share: The rank.
    """
    if not steps_left(samples, consumed, share):
        return np.empty(0, np.int64)
    left, whole = samples - consumed, share.world * share.batch
    if left >= whole or share.ends == "pad":
        taken = np.arange(share.rank, whole, share.world)
        return (consumed + taken) % samples
    return consumed + np.arange(share.rank, left, share.world)


def after(samples: int, consumed: int, share: Slice) -> int:
    """Return how many samples all ranks have consumed once that step is done."""
    return min(samples, consumed + share.world * share.batch)
