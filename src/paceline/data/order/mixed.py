"""The order of samples of several datasets that are mixed by weights: a function of the seed and the position.

The positions of all epochs are divided into rows of 1,024. S are the cumulative weights, and u is a random number of
the row. Dataset k gets as many positions of the row as there are numbers i + u, i = 0 .. 1023, between 1024 S[k-1] and
1024 S[k] (systematic sampling): 1024 w[k] on average, rounded up or down. A permutation shuffles the row.

The j-th position of a dataset of n samples, counted over all rows, is position j mod n of the dataset's own order in
epoch j div n. So each dataset keeps its own order, and each of its samples comes once in each pass, for any weights,
epochs and numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.order.counter_rng import key_of, permutation, uniforms
from paceline.data.order.order import EpochOrder

Numbers = NDArray[np.int64]
ROW = 1024  # positions
_KEPT_ROWS, _KEPT_ORDERS = 64, 64
_CHUNK = 1 << 18  # rows that are computed at a time
_OF_COUNTS, _OF_ROWS = 5, 6  # purposes of the random numbers, part of their keys


class MixedPart(NamedTuple):
    """One of the mixed datasets."""

    samples: int
    first: int  # the number of its first sample in all datasets together
    order: Callable[[int], EpochOrder]  # returns the order of a pass (epoch) over this dataset


class MixedOrder:
    """The order of one epoch: maps positions to sample numbers."""

    def __init__(
        self, parts: Sequence[MixedPart], weights: Sequence[float], blocks: Numbers, seed: int, epoch: int
    ) -> None:
        """Prepare the order of an epoch.

        Args:
            parts: The datasets. An epoch has as many positions as all datasets have samples.
            weights: The share of positions of each dataset; their sum is 1.
            blocks: The number of the first sample of each block, over all datasets one after the other.
            seed: The seed of the mixture.
            epoch: The epoch, from 0.
        """
        self.samples = sum(part.samples for part in parts)
        self._parts, self._blocks, self._seed = parts, blocks, seed
        self._begin = epoch * self.samples
        self._bounds = np.append(0, np.cumsum(weights)) * ROW
        self._first_row = self._begin // ROW
        rows = (self._begin + self.samples - 1) // ROW + 1 - self._first_row
        before = sum(
            (self._counts(row, min(_CHUNK, self._first_row - row)).sum(0) for row in range(0, self._first_row, _CHUNK)),
            np.zeros(len(parts), np.int64),
        )
        self._before = before + np.cumsum(self._counts(self._first_row, rows), 0) - self._counts(self._first_row, rows)
        self._row = lru_cache(_KEPT_ROWS)(self._mixed)
        self._order = lru_cache(_KEPT_ORDERS)(lambda part, turn: parts[part].order(turn))

    def ids(self, positions: Numbers) -> Numbers:
        """Return the numbers of the samples at positions of the epoch, from 0 to `samples` - 1."""
        part, turn = self._places(positions + self._begin)
        found = np.empty(len(positions), np.int64)
        for each in np.unique(part).tolist():
            samples, first, _ = self._parts[each]
            for around in np.unique(turn[part == each] // samples).tolist():
                own = (part == each) & (turn // samples == around)
                found[own] = first + self._order(each, around).ids(turn[own] % samples)
        return found

    def blocks(self, positions: Numbers) -> list[int]:
        """Return the numbers of the blocks that hold the samples at positions, without duplicates, in order of need."""
        block = np.searchsorted(self._blocks, self.ids(positions), side="right") - 1
        return list(dict.fromkeys(block.tolist()))

    def _places(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """Return the dataset at each position (over all epochs), and how many earlier positions this dataset has."""
        row = positions // ROW
        part, turn = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for each in np.unique(row).tolist():
            own = row == each
            parts, turns = self._row(each)
            part[own], turn[own] = parts[positions[own] % ROW], turns[positions[own] % ROW]
        return part, turn

    def _counts(self, first: int, rows: int) -> Numbers:
        """Return how many positions each dataset has in consecutive rows, of shape [rows, datasets]."""
        drawn = uniforms(key_of(self._seed, _OF_COUNTS), np.arange(first, first + rows), 1)
        below = np.clip(np.ceil(self._bounds - drawn), 0, ROW).astype(np.int64)
        below[:, -1] = ROW  # the sum of the weights is 1 up to rounding
        return np.diff(below, axis=1)

    def _mixed(self, row: int) -> tuple[Numbers, Numbers]:
        """Return the dataset at each position of a row, and how many earlier positions this dataset has."""
        (counts,) = self._counts(row, 1)
        parts = np.repeat(np.arange(len(counts)), counts)[permutation(key_of(self._seed, _OF_ROWS, row), ROW)]
        turns = np.empty(ROW, np.int64)
        for each, count in enumerate(counts.tolist()):
            turns[parts == each] = self._before[row - self._first_row, each] + np.arange(count)
        return parts, turns
