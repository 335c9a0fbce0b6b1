"""What if a shard cannot be had: its index is missing, its store is silent? Samples in what is lost are bad samples.

The first ends the loop, with its name; or they are counted, and others of the batch take their places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batch_context import Reach
from paceline.data.batches.batches import Maker
from paceline.data.batches.faults import fill_gaps
from paceline.data.format.folders import LostPart
from paceline.data.format.index import DamagedData
from paceline.data.reading.stages import Lap, Spent

Numbers = NDArray[np.int64]


class Reachable:
    """Makes batches of the samples that can be had. What is lost is not asked for again in the same loop."""

    def __init__(self, maker: Maker, reach: Reach) -> None:
        self._maker = maker
        self._reach = reach
        self._remote = reach.dataset.remote is not None
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
        dataset, lap, cache = self._reach.dataset, Lap(), self._reach.cache
        needed = ids if cache is None else ids[~cache.known(ids)]
        blocks = np.searchsorted(dataset.blocks["first"], needed, side="right") - 1
        fetched = [self._reach.store.get(block).fetched for block in dict.fromkeys(blocks.tolist())]
        lap.mark("fetch", len(ids))  # none where the disk had all of it: that is reading
        self._reach.clock.add("fetch", lap.spent["fetch"] if any(fetched) else Spent(samples=len(ids)))

    def _leave_out(self, ids: Numbers, good: NDArray[np.bool_], part: LostPart) -> bool:
        """Count samples as bad that lie in a part that is lost; say whether there are any."""
        dataset = self._reach.dataset
        blocks = dataset.blocks[np.searchsorted(dataset.blocks["first"], ids, side="right") - 1]
        lost = good & (blocks["shard"] == part.shard)
        if part.begin is not None:
            lost &= blocks["begin"] == part.begin
        for number in np.flatnonzero(lost).tolist():
            name = self._name(ids[number : number + 1], part)
            self._reach.faults.met(name, DamagedData(f"{name}: {part}"))
            good[number] = False
        return bool(lost.any())

    def _name(self, ids: Numbers, part: LostPart) -> str:
        (place,) = self._reach.dataset.places(ids)
        if part.begin is not None:
            return self._reach.dataset.name(place)
        return f"{self._reach.dataset.contents.shards[place.shard].file}, sample {place.row}"
