"""The positions of the sequence that a rank takes: what is left of it, distributed sample by sample.

State is how many samples all ranks together have consumed: whatever their number was, and whatever it is now, what is
left is the rest of the same sequence, and nothing is lost or comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError

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


def check_steps(samples: int, share: Slice) -> None:
    """Check that an epoch has a step.

    Args:
        samples: Of the epoch.
        share: A rank.

    Raises:
        UsageError: No rank would get a batch.
    """
    if steps_left(samples, 0, share):
        return
    if not samples:
        raise UsageError("the data set has no samples, so an epoch has no batch; give a data set with samples")
    if share.ends == "even":
        raise UsageError(
            f"the data set has {samples:,} samples for {share.world:,} ranks, so an epoch has no batch; use at most "
            f'{samples:,} ranks, or ends="pad", which repeats samples'
        )
    most = samples // share.world
    smaller = f"a batch_size of at most {most:,}" if most else f"at most {samples:,} ranks"
    raise UsageError(
        f"a step takes {share.world * share.batch:,} samples (batch_size {share.batch:,} x {share.world:,} ranks), and "
        f'the data set has {samples:,}, so ends="drop" leaves no batch; use {smaller}, or ends="pad", which repeats '
        "samples"
    )


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


def coming(samples: int, consumed: int, share: Slice, most: int) -> Numbers:
    """Return the positions that a rank takes once so many samples are consumed, some of them at most."""
    return np.arange(consumed + share.rank, min(samples, consumed + most * share.world), share.world)


def planned(samples: int, consumed: int, share: Slice, most: int) -> Iterator[tuple[list[int], list[Numbers]]]:
    """Yield the steps that are left, several at a time, for what is cheaper done for many.

    Args:
        samples: Of the epoch.
        consumed: By all ranks together.
        share: The rank.
        most: Steps at a time.

    Yields:
        How many samples are consumed after each step, and the positions that the rank takes in it.
    """
    whole = share.world * share.batch
    while steps_left(samples, consumed, share):
        full = min(most, (samples - consumed) // whole)
        if not full:
            yield [after(samples, consumed, share)], [positions(samples, consumed, share)]
            return
        taken = np.arange(consumed + share.rank, consumed + full * whole, share.world).reshape(full, share.batch)
        yield [consumed + whole * step for step in range(1, full + 1)], list(taken)
        consumed += full * whole
