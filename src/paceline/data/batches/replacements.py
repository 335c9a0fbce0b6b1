"""Other samples in place of those that are lost, and in place of a batch without a single good one.

A sample is lost if the index of its shard is missing, or if its store does not answer. Lost samples are bad samples:
the first one ends the loop, or they are counted and others of the batch take their places. All ranks make the same
number of steps: a rank with fewer batches would leave the others waiting in their next gradient exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batch_context import BatchContext
from paceline.data.batches.batches import Maker
from paceline.data.batches.faults import Faults, Skipped, fill_gaps
from paceline.data.format.folders import LostPart
from paceline.data.format.index import DamagedData
from paceline.data.reading.stages import Lap, Spent

Numbers = NDArray[np.int64]
_TRIES = 64  # other batches that are tried
_STRIDE = 0.6180339887  # of all samples: multiples of the golden ratio spread evenly, whatever part is lost


class LostSampleReplacer:
    """Makes batches of the samples that can be had. What is lost is not asked for again in the same loop."""

    def __init__(self, maker: Maker, context: BatchContext) -> None:
        self._maker = maker
        self._context = context
        self._remote = context.dataset.remote is not None
        self._lost: list[LostPart] = []

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch; samples that are lost are replaced.

        Raises:
            DamagedData: One is lost, and bad samples are not to be skipped.
            Skipped: All of them are lost.
        """
        good = np.ones(len(ids), np.bool_)
        for part in list(self._lost):
            self._leave_out(ids, good, part)
        while True:
            there = ids.copy()
            fill_gaps(there, good)
            try:
                if self._remote:
                    self._wait_for(there)
                return self._maker.make(there, epoch)
            except LostPart as part:
                if not self._leave_out(ids, good, part):
                    raise
                self._lost.append(part)

    def _wait_for(self, ids: Numbers) -> None:
        """Wait until all blocks of a batch are in memory: this is what a store costs."""
        dataset, lap, cache = self._context.dataset, Lap(), self._context.cache
        needed = ids if cache is None else ids[~cache.known(ids)]
        blocks = np.searchsorted(dataset.blocks["first"], needed, side="right") - 1
        fetched = [self._context.store.get(block).fetched for block in dict.fromkeys(blocks.tolist())]
        lap.mark("fetch", len(ids))  # none where the disk had all of it: that is reading
        self._context.clock.add("fetch", lap.spent["fetch"] if any(fetched) else Spent(samples=len(ids)))

    def _leave_out(self, ids: Numbers, good: NDArray[np.bool_], part: LostPart) -> bool:
        """Count samples as bad that lie in a part that is lost; say whether there are any."""
        dataset = self._context.dataset
        blocks = dataset.blocks[np.searchsorted(dataset.blocks["first"], ids, side="right") - 1]
        lost = good & (blocks["shard"] == part.shard)
        if part.begin is not None:
            lost &= blocks["begin"] == part.begin
        for number in np.flatnonzero(lost).tolist():
            name = self._name(ids[number : number + 1], part)
            self._context.faults.met(name, DamagedData(f"{name}: {part}"))
            good[number] = False
        return bool(lost.any())

    def _name(self, ids: Numbers, part: LostPart) -> str:
        (place,) = self._context.dataset.places(ids)
        if part.begin is not None:
            return self._context.dataset.name(place)
        return f"{self._context.dataset.contents.shards[place.shard].file}, sample {place.row}"


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


class BadBatchReplacer:
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
