"""Other samples in place of a batch without a single good one, so that all ranks make the same number of steps.

A rank with fewer batches than the others leaves them waiting in their next gradient exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batches import Maker
from paceline.data.batches.faults import Faults, Skipped
from paceline.data.format.index import DamagedData

Numbers = NDArray[np.int64]
_TRIES = 64  # other batches that are tried
_STRIDE = 0.6180339887  # of all samples: multiples of the golden ratio spread evenly, whatever part is lost


def substitutes(ids: Numbers, samples: int | Numbers) -> Iterator[Numbers]:
    """Yield the numbers of other samples to try in place of some, spread over all samples; always the same ones.

    Args:
        ids: Numbers of the samples that are bad.
        samples: How many there are, or the numbers of those that may be taken.
    """
    count = samples if isinstance(samples, int) else len(samples)
    allowed = None if isinstance(samples, int) else np.sort(samples)
    places = ids if allowed is None else np.searchsorted(allowed, ids)
    for attempt in range(1, _TRIES + 1):
        others = (places + round(attempt * _STRIDE * count)) % count
        yield others if allowed is None else allowed[others]


def nothing_good() -> DamagedData:
    """Return the error that ends a loop where no good sample was found."""
    return DamagedData(f"all samples of a batch are bad, and so are those of {_TRIES} others; check the data set")


class Replacing:
    """Makes batches, and other ones in place of those without a good sample."""

    def __init__(self, maker: Maker, faults: Faults, samples: int | Numbers) -> None:
        self._maker = maker
        self._faults = faults
        self._samples = samples

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch of some samples, or of others if all of these are bad.

        Raises:
            DamagedData: No good sample was found, or a sample is bad and bad samples are not to be skipped.
        """
        try:
            return self._maker.make(ids, epoch)
        except Skipped:
            pass
        with self._faults.uncounted():  # what is bad among the others is counted where they are asked for
            for others in substitutes(ids, self._samples):
                try:
                    return self._maker.make(others, epoch)
                except Skipped:
                    continue
        raise nothing_good()
