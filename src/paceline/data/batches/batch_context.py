"""What batches of shards are made with: bytes of samples in memory, their checksums, and arrays that are reused."""

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
_FREE = 2  # references to an array that nobody else has: of the list, and of the call that counts them


def unpinned_array(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array of bytes in the memory of the process."""
    return np.empty(shape, np.uint8)


class ArrayPool:
    """Arrays of batches that are used again once the training has let go of them: new memory costs page faults."""

    def __init__(self, most: int, make: Callable[[tuple[int, ...]], NDArray[np.uint8]] = unpinned_array) -> None:
        """Keep none yet.

        Args:
            most: Arrays that are kept.
            make: Makes one of a shape.
        """
        self._most = most
        self._make = make
        self._lock = threading.Lock()
        self._kept: list[NDArray[np.uint8]] = []
        keep_in_children(self)  # they may be pinned

    def taken(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an array that nobody has."""
        with self._lock:
            for place in range(len(self._kept)):
                if self._kept[place].shape == shape and sys.getrefcount(self._kept[place]) <= _FREE:
                    return self._kept[place]
            made = self._make(shape)
            if len(self._kept) < self._most:
                self._kept.append(made)
            return made


class SampleBytes(NamedTuple):
    """Bytes of a sample in memory, how many they should be, and their checksum."""

    data: memoryview
    length: int
    crc32: int


@dataclass(frozen=True, kw_only=True)
class BatchContext:
    """What batches of a sharded data set are made with."""

    dataset: ShardedDataset
    store: BlockStore
    clock: StageClock
    faults: Faults
    seed: int
    cache: DecodedCache | None = None  # of pictures that were decoded

    def payloads(self, name: str, ids: Numbers, places: Sequence[SamplePlace]) -> list[SampleBytes]:
        """Return the bytes of samples, as they lie in blocks in memory, with what they should be."""
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
        """Return the bytes of a sample, if they are those that were written.

        Raises:
            DamagedData: They are not.
        """
        return self.dataset.checked(name, place, kept.data, kept.length, kept.crc32)


@dataclass(frozen=True, kw_only=True)
class DatasetContext:
    """What batches of samples that are made one by one are made with."""

    arrays: ArrayPool  # where images become batches
    clock: StageClock
    faults: Faults
    seed: int  # of crops, and of what samples draw
