"""Replacement of lost samples, and of batches without a good sample.

A sample is lost if the index of its shard is missing, or if its store does not answer. Lost samples are bad samples:
the first one ends the loop, or they are counted and replaced by other samples of the batch. All ranks make the same
number of steps, because a rank with fewer batches would leave the others waiting in the next gradient exchange.
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
_TRIES = 64  # replacement batches that are tried
_STRIDE = 0.6180339887  # relative to all samples; multiples of the golden ratio spread evenly over them


class LostSampleReplacer:
    """Makes batches with lost samples replaced. A lost part of the dataset is not requested again in the same loop."""

    def __init__(self, maker: Maker, context: BatchContext) -> None:
        self._maker = maker
        self._context = context
        self._remote = context.dataset.remote is not None
        self._lost: list[LostPart] = []

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch in which good samples of the batch replace lost ones.

        Args:
            ids: The numbers of the samples.
            epoch: The epoch, from 0.

        Raises:
            DamagedData: A sample is lost, and bad samples are not skipped.
            Skipped: All samples are lost.
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
        """Wait until all blocks of a batch are in memory; the wait counts as time of the stage ``fetch``."""
        dataset, lap, cache = self._context.dataset, Lap(), self._context.cache
        needed = ids if cache is None else ids[~cache.known(ids)]
        blocks = np.searchsorted(dataset.blocks["first"], needed, side="right") - 1
        fetched = [self._context.store.get(block).fetched for block in dict.fromkeys(blocks.tolist())]
        lap.mark("fetch", len(ids))  # not counted if all blocks came from the local disk
        self._context.clock.add("fetch", lap.spent["fetch"] if any(fetched) else Spent(samples=len(ids)))

    def _leave_out(self, ids: Numbers, good: NDArray[np.bool_], part: LostPart) -> bool:
        """Count the batch's samples in a lost part of the dataset as bad, and return whether there are any.

        Their flags in `good` are cleared.
        """
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
    """Yield replacement batches of sample numbers, spread over all samples; equal arguments give equal batches.

    Args:
        ids: The numbers of the bad samples.
        samples: The number of samples in the dataset, or the numbers of the samples that may be used.
    """
    count = samples if isinstance(samples, int) else len(samples)
    allowed = None if isinstance(samples, int) else np.sort(samples)
    places = ids if allowed is None else np.searchsorted(allowed, ids)
    for attempt in range(1, _TRIES + 1):
        others = (places + round(attempt * _STRIDE * count)) % count
        yield others if allowed is None else allowed[others]


def nothing_good() -> DamagedData:
    """Return the error that ends a loop in which no good sample was found."""
    return DamagedData(f"all samples of a batch are bad, and so are those of {_TRIES} others; check the data set")


class BadBatchReplacer:
    """Makes batches, and replaces a batch that has no good sample by another batch."""

    def __init__(self, maker: Maker, faults: Faults, samples: int | Numbers) -> None:
        self._maker = maker
        self._faults = faults
        self._samples = samples

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch; if all of its samples are bad, make a batch of other samples instead.

        Args:
            ids: The numbers of the samples.
            epoch: The epoch, from 0.

        Raises:
            DamagedData: No good sample was found, or a sample is bad and bad samples are not skipped.
        """
        try:
            return self._maker.make(ids, epoch)
        except Skipped:
            pass
        with self._faults.uncounted():  # bad replacements are counted when their own batch is made
            for others in substitutes(ids, self._samples):
                try:
                    return self._maker.make(others, epoch)
                except Skipped:
                    continue
        raise nothing_good()
