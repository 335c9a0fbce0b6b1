"""How well are samples mixed? Of how many blocks a batch is made, and how alike the orders of two epochs are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.data.order.order import Numbers, Order, Shuffle

_BATCHES = 200  # that are looked at


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """What a shuffle does to a data set."""

    batch: int  # samples
    blocks: float  # that a batch is made of, on average
    perfect: float  # of how many it would be made if all samples were mixed with each other
    epochs_alike: float  # correlation of the places that samples have in two epochs; 0: not at all


def mixing_of(first: Numbers, samples: int, shuffle: Shuffle | None, batch: int = 64) -> Mixing:
    """Look at some batches of an epoch, and at two epochs.

    Args:
        first: Number of the first sample of each block.
        samples: Of all of them.
        shuffle: How they are mixed; None: not at all.
        batch: Samples of a batch.
    """
    one, other = (Order(first, samples, shuffle, epoch).ids(np.arange(samples)) for epoch in (0, 1))
    batch = min(batch, samples)
    begins = np.linspace(0, samples - batch, min(_BATCHES, max(1, samples // batch))).astype(np.int64)
    blocks = np.searchsorted(first, one, side="right")
    sizes = np.diff(np.append(first, samples)) / samples
    return Mixing(
        batch=batch,
        blocks=float(np.mean([len(np.unique(blocks[begin : begin + batch])) for begin in begins])),
        perfect=float((1 - (1 - sizes) ** batch).sum()),
        epochs_alike=_alike(one, other),
    )


def _alike(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return the correlation of the places of samples in two orders."""
    if len(one) < 2:
        return 1.0
    places = [np.argsort(order, kind="stable") for order in (one, other)]
    return float(np.corrcoef(places[0], places[1])[0, 1])
