"""The order of samples in an epoch: a function of the seed and the epoch. Each rank takes a slice of it.

Samples are stored in shards, and shards are divided into blocks of a few megabytes that are read in one piece. Blocks
are shuffled over the whole dataset. Consecutive blocks of this order form a window, and samples are shuffled within a
window. So a batch mixes samples of many parts of the dataset, while reads stay large.

The order consists of L lanes that take turns: position p is in lane p mod L. L does not depend on the number N of
ranks, so any number of them gets the same sequence. A block is read by N / gcd(N, L) ranks: by one rank if N divides L.

Each position is computed independently of the others, so resuming in the middle of an epoch costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paceline.data.order.counter_rng import key_of, keys_of, permutation, permutations

Numbers = NDArray[np.int64]
LANES = 8  # a multiple of the usual numbers of GPUs in a machine
WINDOW = 32  # blocks
_OF_BLOCKS, _OF_WINDOWS = 0, 1  # purposes of permutations, part of their keys
_CACHED_PARTS = 64  # results of `_drawn` that are cached
_PART_SAMPLES = 1024  # windows up to this many samples are shuffled in one call, because each call has a fixed cost


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """The parameters of a shuffle."""

    seed: int
    window: int  # blocks of a lane whose samples are shuffled together
    lanes: int = 1


def shuffle_of(seed: int, window: int = WINDOW, lanes: int = LANES) -> Shuffle:
    """Return the parameters of a shuffle.

    Args:
        seed: The seed of the order.
        window: The number of blocks, over all lanes, whose samples are shuffled together; at least one of each lane.
        lanes: The number of lanes.
    """
    return Shuffle(seed=seed, window=max(1, window // lanes), lanes=lanes)


class EpochOrder:
    """The order of one epoch: maps positions to sample numbers."""

    def __init__(self, blocks: Numbers, samples: int, shuffle: Shuffle | None, epoch: int) -> None:
        """Prepare the order of an epoch.

        Args:
            blocks: The number of the first sample of each block, from 0 and ascending.
            samples: The number of samples in all blocks.
            shuffle: The parameters of the shuffle; None keeps the stored order.
            epoch: The epoch, from 0.
        """
        self.samples = samples
        self._key = key_of(shuffle.seed, epoch) if shuffle is not None else None
        sizes = np.diff(np.append(blocks, samples))
        count = len(blocks)
        turn = permutation(key_of(self._key, _OF_BLOCKS), count) if self._key is not None else np.arange(count)
        self._turn = turn
        self._blocks = blocks[turn]
        self._begins = np.append(0, np.cumsum(sizes[turn]))  # of blocks, in their shuffled order
        lanes = shuffle.lanes if shuffle is not None else 1
        self._lanes = np.arange(lanes + 1, dtype=np.int64) * samples // lanes
        self._windows = [self._bounds(lane, shuffle.window if shuffle is not None else count) for lane in range(lanes)]
        largest = max(int(np.diff(bounds).max(initial=1)) for bounds in self._windows)
        self._windows_of_part = max(1, _PART_SAMPLES // largest)
        self._mixture = lru_cache(_CACHED_PARTS)(self._drawn)

    def ids(self, positions: Numbers) -> Numbers:
        """Return the numbers of the samples at positions of the epoch, from 0 to `samples` - 1."""
        places = self._places(positions)
        block = np.searchsorted(self._begins, places, side="right") - 1
        return self._blocks[block] + places - self._begins[block]

    def blocks(self, positions: Numbers) -> list[int]:
        """Return the numbers of the blocks that hold the samples at positions, without duplicates, in order of need."""
        block = np.searchsorted(self._begins, self._places(positions), side="right") - 1
        return list(dict.fromkeys(self._turn[block].tolist()))

    def _bounds(self, lane: int, window: int) -> Numbers:
        """Return the starts of a lane's windows in the order of blocks, and the end of the last window."""
        begin, end = int(self._lanes[lane]), int(self._lanes[lane + 1])
        first = int(np.searchsorted(self._begins, begin, side="right")) - 1
        edges = self._begins[first :: max(1, window)]
        inside = edges[(edges > begin) & (edges < end)]
        return np.concatenate([[begin], inside, [end]]).astype(np.int64)

    def _places(self, positions: Numbers) -> Numbers:
        """Return the index of each position's sample in the order of blocks, with a block's samples consecutive."""
        lane, offset = self._turns(positions)
        found = np.empty(len(positions), np.int64)
        for each in np.unique(lane):
            own = lane == each
            found[own] = self._mixed(int(each), offset[own])
        return found

    def _turns(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """Return the lane of each position, and how many earlier positions the lane has."""
        lanes = len(self._lanes) - 1
        rounds = self.samples // lanes
        lane, offset = positions % lanes, positions // lanes
        late = positions >= rounds * lanes  # the last positions belong to lanes with one more sample
        if late.any():
            longer = np.flatnonzero(np.diff(self._lanes) > rounds)
            lane[late], offset[late] = longer[positions[late] - rounds * lanes], rounds
        return lane, offset

    def _mixed(self, lane: int, offsets: Numbers) -> Numbers:
        bounds = self._windows[lane]
        places = bounds[0] + offsets
        if self._key is None:
            return places
        part = (np.searchsorted(bounds, places, side="right") - 1) // self._windows_of_part
        for each in np.unique(part):
            own = part == each
            places[own] = self._mixture(lane, int(each))[places[own] - bounds[each * self._windows_of_part]]
        return places

    def _drawn(self, lane: int, part: int) -> Numbers:
        """Return the shuffled places of a part of a lane: consecutive windows, each shuffled within itself."""
        first = part * self._windows_of_part
        bounds = self._windows[lane][first : first + self._windows_of_part + 1]
        keys = keys_of((self._key or 0, _OF_WINDOWS, lane), first + np.arange(len(bounds) - 1))
        return bounds[0] + permutations(keys, np.diff(bounds))


class SelectedOrder(EpochOrder):
    """The order of one epoch over a subset of the samples."""

    def __init__(self, blocks: Numbers, selected: Numbers, shuffle: Shuffle | None, epoch: int) -> None:
        """Prepare the order of an epoch.

        Args:
            blocks: The number of the first sample of each block of the whole dataset.
            selected: The numbers of the samples in the subset; a number can occur several times.
            shuffle: The parameters of the shuffle; None keeps the order of `selected`.
            epoch: The epoch, from 0.
        """
        self._selected = selected if shuffle is None else np.sort(selected)
        own = np.unique(np.searchsorted(self._selected, blocks)) if shuffle is not None else np.array([0])
        self._first = blocks
        super().__init__(own[own < len(selected)], len(selected), shuffle, epoch)

    def ids(self, positions: Numbers) -> Numbers:
        """Return the numbers of the samples at positions of the epoch."""
        return self._selected[super().ids(positions)]

    def blocks(self, positions: Numbers) -> list[int]:
        """Return the numbers of the blocks that hold the samples at positions, without duplicates, in order of need."""
        block = np.searchsorted(self._first, self.ids(positions), side="right") - 1
        return list(dict.fromkeys(block.tolist()))
