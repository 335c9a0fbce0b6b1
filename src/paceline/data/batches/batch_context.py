"""Shared objects for making batches of shards: sample bytes in memory, checksums, and a pool of reused arrays."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.forks import keep_in_children
from paceline.data.batches.faults import Faults
from paceline.data.reading.blocks import BlockStore
from paceline.data.reading.decoded_cache import DecodedCache
from paceline.data.reading.sharded import SamplePlace, ShardedDataset
from paceline.data.reading.stages import StageClock

Numbers = NDArray[np.int64]
_FREE = 2  # reference count of an unused array: the list, and the call of getrefcount


def unpinned_array(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an uninitialized uint8 array in ordinary memory, which is not pinned."""
    return np.empty(shape, np.uint8)


class ArrayPool:
    """A pool of batch arrays, reused once the training no longer references them; new memory costs page faults."""

    def __init__(self, most: int, make: Callable[[tuple[int, ...]], NDArray[np.uint8]] = unpinned_array) -> None:
        """Create an empty pool.

        Args:
            most: The largest number of arrays in the pool.
            make: Creates an array from its shape.
        """
        self._most = most
        self._make = make
        self._lock = threading.Lock()
        self._kept: list[NDArray[np.uint8]] = []
        keep_in_children(self)  # as the arrays may be pinned

    def taken(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an unused array of the given shape, from the pool or new, with arbitrary content."""
        with self._lock:
            for place in range(len(self._kept)):
                if self._kept[place].shape == shape and sys.getrefcount(self._kept[place]) <= _FREE:
                    return self._kept[place]
            made = self._make(shape)
            if len(self._kept) < self._most:
                self._kept.append(made)
            return made


class SampleBytes(NamedTuple):
    """The bytes of a sample in memory, with the length and CRC-32 from the index."""

    data: memoryview
    length: int
    crc32: int


@dataclass(frozen=True, kw_only=True)
class BatchContext:
    """The objects from which batches of a sharded dataset are made: dataset, blocks in memory, clock and cache."""

    dataset: ShardedDataset
    store: BlockStore
    clock: StageClock
    faults: Faults
    seed: int
    cache: DecodedCache | None = None  # of decoded images

    def payloads(self, name: str, ids: Numbers, places: Sequence[SamplePlace]) -> list[SampleBytes]:
        """Return the bytes of samples as views of blocks in memory, with the lengths and checksums from the index.

        Args:
            name: The column.
            ids: The numbers of the samples in the dataset.
            places: The shard and row of each sample.
        """
        told = self.dataset.gathered(name, ("offset", "length", "crc32"), places)
        numbers = (np.searchsorted(self.dataset.blocks["first"], ids, side="right") - 1).tolist()
        blocks = {number: self.store.get(number) for number in dict.fromkeys(numbers)}
        return [
            SampleBytes(blocks[number].part(offset, length), length, crc32)
            for number, offset, length, crc32 in zip(
                numbers, *(column.tolist() for column in told.values()), strict=True
            )
        ]

    def checked(self, name: str, place: SamplePlace, kept: SampleBytes) -> memoryview:
        """Return the bytes of a sample after a check of their length and checksum.

        Raises:
            DamagedData: The length or the checksum differs from the index.
        """
        return self.dataset.checked(name, place, kept.data, kept.length, kept.crc32)


@dataclass(frozen=True, kw_only=True)
class DatasetContext:
    """The objects that makers of batches share, for datasets whose samples are read one by one."""

    arrays: ArrayPool  # for the images of batches
    clock: StageClock
    faults: Faults
    seed: int  # of crops and of random numbers in samples
