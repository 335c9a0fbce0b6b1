"""The positions of an epoch's order that each rank takes: the rest of the epoch is dealt to ranks sample by sample.

The only state is the number of samples that all ranks together have consumed. If a run resumes with another number of
ranks, they take the rest of the same order, so no sample is lost or repeated.
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
    """A rank among all ranks, and its batch size."""

    rank: int
    world: int
    batch: int  # samples of a rank in a step
    ends: Ends = "drop"  # an incomplete last step is dropped, padded from the start, or split evenly


def steps_left(samples: int, consumed: int, share: Slice) -> int:
    """Return the number of steps left in an epoch, the same for all ranks.

    Args:
        samples: The number of samples in the epoch.
        consumed: How many samples all ranks together have consumed.
        share: The rank.
    """
    left, whole = samples - consumed, share.world * share.batch
    full, rest = divmod(max(0, left), whole)
    if share.ends == "drop":
        return full
    least = 1 if share.ends == "pad" else share.world  # with "even", each rank must get a sample
    return full + (rest >= least)


def check_steps(samples: int, share: Slice) -> None:
    """Check that an epoch has at least one step.

    Args:
        samples: The number of samples in the epoch.
        share: Any rank.

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
    """Return the positions that a rank takes in the next step, or an empty array after the last step.

    Args:
        samples: The number of samples in the epoch.
        consumed: How many samples all ranks together have consumed.
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
    """Return how many samples all ranks have consumed after the next step."""
    return min(samples, consumed + share.world * share.batch)


def coming(samples: int, consumed: int, share: Slice, most: int) -> Numbers:
    """Return the next positions of a rank after `consumed` samples, at most `most` of them."""
    return np.arange(consumed + share.rank, min(samples, consumed + most * share.world), share.world)


def planned(samples: int, consumed: int, share: Slice, most: int) -> Iterator[tuple[list[int], list[Numbers]]]:
    """Yield the steps left in an epoch in groups, so that callers can process several steps at once.

    Args:
        samples: The number of samples in the epoch.
        consumed: How many samples all ranks together have consumed.
        share: The rank.
        most: The most steps of a group.

    Yields:
        For each step the number of samples consumed after it, and for each step the positions of the rank.
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
