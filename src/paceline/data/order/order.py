"""The order of samples in an epoch: a function of seed and epoch over all samples. Ranks only slice it.

Samples lie in shards, and shards are cut into blocks of some megabytes that are read in one piece. Blocks are shuffled
over the whole data set; some of them in a row make a window, and samples are shuffled within it. So what is read
together is used together, and still comes from everywhere.

The sequence is made of L lanes that take turns: position p is in lane p mod L. L does not depend on the number N of
ranks, so any number of them gets the same sequence. A block is read by N / gcd(N, L) ranks: by one rank if N divides L.

Nothing is drawn one after the other: any position can be asked for, so that going on in the middle costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paceline.data.order.counter_rng import key_of, permutation

Numbers = NDArray[np.int64]
LANES = 8  # divided by the usual numbers of GPUs of a machine
WINDOW = 32  # blocks
_OF_BLOCKS, _OF_WINDOWS = 0, 1  # what a permutation is for
_KEPT_WINDOWS = 64  # whose permutations are kept


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """How samples are mixed."""

    seed: int
    window: int  # blocks of a lane whose samples are mixed with each other
    lanes: int = 1


def shuffle_of(seed: int, window: int = WINDOW, lanes: int = LANES) -> Shuffle:
    """Return how samples are mixed.

    Args:
        seed: Of the order.
        window: Blocks of all lanes together whose samples are mixed with each other; at least one of each lane.
        lanes: Parts of the sequence that take turns.
    """
    return Shuffle(seed=seed, window=max(1, window // lanes), lanes=lanes)


class EpochOrder:
    """The sequence of one epoch: numbers of samples by position."""

    def __init__(self, blocks: Numbers, samples: int, shuffle: Shuffle | None, epoch: int) -> None:
        """Make the sequence.

        Args:
            blocks: Number of the first sample of each block; they lie one after the other, from 0 on.
            samples: Of all blocks together.
            shuffle: How they are mixed; None: they come as they lie.
            epoch: From 0.
        """
        self.samples = samples
        self._key = key_of(shuffle.seed, epoch) if shuffle is not None else None
        sizes = np.diff(np.append(blocks, samples))
        count = len(blocks)
        turn = permutation(key_of(self._key, _OF_BLOCKS), count) if self._key is not None else np.arange(count)
        self._turn = turn
        self._blocks = blocks[turn]
        self._begins = np.append(0, np.cumsum(sizes[turn]))  # of blocks, in the order of reading
        lanes = shuffle.lanes if shuffle is not None else 1
        self._lanes = np.arange(lanes + 1, dtype=np.int64) * samples // lanes
        self._windows = [self._bounds(lane, shuffle.window if shuffle is not None else count) for lane in range(lanes)]
        self._mixture = lru_cache(_KEPT_WINDOWS)(self._drawn)

    def ids(self, positions: Numbers) -> Numbers:
        """Return the numbers of the samples at some positions of the sequence, from 0 to `samples` - 1."""
        places = self._places(positions)
        block = np.searchsorted(self._begins, places, side="right") - 1
        return self._blocks[block] + places - self._begins[block]

    def blocks(self, positions: Numbers) -> list[int]:
        """Return the numbers of the blocks that positions need, each once, in the order in which they are needed."""
        block = np.searchsorted(self._begins, self._places(positions), side="right") - 1
        return list(dict.fromkeys(self._turn[block].tolist()))

    def _bounds(self, lane: int, window: int) -> Numbers:
        """Return where the windows of a lane begin in the order of reading, and where the last one ends."""
        begin, end = int(self._lanes[lane]), int(self._lanes[lane + 1])
        first = int(np.searchsorted(self._begins, begin, side="right")) - 1
        edges = self._begins[first :: max(1, window)]
        inside = edges[(edges > begin) & (edges < end)]
        return np.concatenate([[begin], inside, [end]]).astype(np.int64)

    def _places(self, positions: Numbers) -> Numbers:
        """Return where positions of the sequence lie in the order of reading."""
        lane, offset = self._turns(positions)
        found = np.empty(len(positions), np.int64)
        for each in np.unique(lane):
            own = lane == each
            found[own] = self._mixed(int(each), offset[own])
        return found

    def _turns(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """Return the lanes of positions, and how many of their lane come before them."""
        lanes = len(self._lanes) - 1
        rounds = self.samples // lanes
        lane, offset = positions % lanes, positions // lanes
        late = positions >= rounds * lanes  # of the lanes that have one sample more than others
        if late.any():
            longer = np.flatnonzero(np.diff(self._lanes) > rounds)
            lane[late], offset[late] = longer[positions[late] - rounds * lanes], rounds
        return lane, offset

    def _mixed(self, lane: int, offsets: Numbers) -> Numbers:
        bounds = self._windows[lane]
        places = bounds[0] + offsets
        if self._key is None:
            return places
        window = np.searchsorted(bounds, places, side="right") - 1
        for each in np.unique(window):
            own = window == each
            places[own] = bounds[each] + self._mixture(lane, int(each))[places[own] - bounds[each]]
        return places

    def _drawn(self, lane: int, window: int) -> Numbers:
        bounds = self._windows[lane]
        return permutation(key_of(self._key or 0, _OF_WINDOWS, lane, window), int(bounds[window + 1] - bounds[window]))


class SelectedOrder(EpochOrder):
    """The sequence of an epoch over some of the samples."""

    def __init__(self, blocks: Numbers, selected: Numbers, shuffle: Shuffle | None, epoch: int) -> None:
        """Make the sequence.

        Args:
            blocks: Number of the first sample of each block of the whole data set.
            selected: Numbers of samples; a number may come several times.
            shuffle: How they are mixed; None: they come as they are given.
            epoch: From 0.
        """
        self._selected = selected if shuffle is None else np.sort(selected)
        own = np.unique(np.searchsorted(self._selected, blocks)) if shuffle is not None else np.array([0])
        self._first = blocks
        super().__init__(own[own < len(selected)], len(selected), shuffle, epoch)

    def ids(self, positions: Numbers) -> Numbers:
        """Return the numbers of the samples at some positions of the sequence."""
        return self._selected[super().ids(positions)]

    def blocks(self, positions: Numbers) -> list[int]:
        """Return the numbers of the blocks that positions need, each once, in the order in which they are needed."""
        block = np.searchsorted(self._first, self.ids(positions), side="right") - 1
        return list(dict.fromkeys(block.tolist()))
