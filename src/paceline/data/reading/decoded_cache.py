"""A cache of decoded images, in memory or in files on a local disk.

Where a crop draws nothing at random what it makes is kept, else whole pictures are. What was kept first stays: every
epoch needs every sample once, so whatever is thrown out for another would have been as good.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault
from paceline.data.format.model import Contents
from paceline.data.order.ranks import ranks_on_host
from paceline.data.reading.sharded import SamplePlace, ShardedDataset
from paceline.hardware.host import available_bytes
from paceline.hardware.operating_system import LocalFiles

Numbers = NDArray[np.int64]
Pixels = NDArray[np.uint8]  # of shape [height, width, 3]
Shapes = Callable[[int], NDArray[np.int64]]  # of a shard: height and width of each sample, [samples, 2]; 0: not known
_OF_FREE = 0.4  # of what is free, unless something else is said


@dataclass(frozen=True, kw_only=True)
class CacheUse:
    """What a cache holds."""

    where: str  # "ram" or the folder
    samples: int
    bytes: int
    most_bytes: int
    trouble: str | None  # why it keeps nothing more, where that is not for lack of room


class DecodedCache(Protocol):
    """Pixels by the number of their sample; safe from several threads."""

    def known(self, ids: Numbers) -> NDArray[np.bool_]:
        """Say which samples are there, as far as that can be told without looking."""

    def found(self, number: int, place: SamplePlace) -> Pixels | None:
        """Return the pixels of a sample; None where they are not there."""

    def has_room(self, number: int) -> bool:
        """Say whether one more sample may be kept."""

    def keep(self, number: int, place: SamplePlace, pixels: Pixels) -> None:
        """Keep a copy of the pixels of a sample."""

    @property
    def use(self) -> CacheUse:
        """What it holds."""

    def close(self) -> None:
        """Let go of memory and files; what is on a disk stays there."""


class InMemory:
    """Pixels in the memory of this process."""

    def __init__(self, samples: int, most_bytes: int) -> None:
        self._kept: dict[int, Pixels] = {}
        self._there = np.zeros(samples, np.bool_)
        self._most, self._bytes = most_bytes, 0
        self._lock = threading.Lock()

    def known(self, ids: Numbers) -> NDArray[np.bool_]:
        """Say which samples are there."""
        return self._there[ids]

    def found(self, number: int, place: SamplePlace) -> Pixels | None:
        """Return the pixels of a sample; None where they are not there."""
        return self._kept.get(number)

    def has_room(self, number: int) -> bool:
        """Say whether one more sample may be kept, of the size that those have which are there."""
        return self._bytes + self._bytes // max(1, len(self._kept)) <= self._most

    def keep(self, number: int, place: SamplePlace, pixels: Pixels) -> None:
        """Keep a copy of the pixels of a sample, if there is room for them."""
        with self._lock:
            if number in self._kept or self._bytes + pixels.nbytes > self._most:
                return
            self._kept[number] = pixels.copy()
            self._there[number] = True
            self._bytes += pixels.nbytes

    @property
    def use(self) -> CacheUse:
        """What it holds."""
        return CacheUse(where="ram", samples=len(self._kept), bytes=self._bytes, most_bytes=self._most, trouble=None)

    def close(self) -> None:
        """Let go of all."""
        with self._lock:
            self._kept.clear()
            self._there[:] = False
            self._bytes = 0


@dataclass(frozen=True)
class _ShardFiles:
    """The files of one shard: pixels, each sample at its place, and their checksums, 0 for those that are not there."""

    pixels: int  # file descriptor
    checksums: NDArray[np.uint32]
    begins: NDArray[np.int64]
    shapes: NDArray[np.int64]


class OnDisk:
    """Pixels in files that all ranks of a machine share, and that the next run finds again.

    Each sample has its place; whoever has made it writes it there, and then its checksum. What was not written whole
    does not fit its checksum, and counts as not there.
    """

    def __init__(self, folder: Path, shapes: Shapes, samples: int, most_bytes: int) -> None:
        """Open a cache.

        Args:
            folder: Of this data set and kind of pixels alone.
            shapes: Of the pixels of each shard.
            samples: Of the data set.
            most_bytes: That this process adds, at most.
        """
        self._folder, self._shapes = folder, shapes
        self._there = np.zeros(samples, np.bool_)
        self._most, self._bytes, self._written = most_bytes, 0, 0
        self._lock = threading.Lock()
        self._shards: dict[int, _ShardFiles] = {}
        self._trouble: str | None = None

    def known(self, ids: Numbers) -> NDArray[np.bool_]:
        """Say which samples have been seen there."""
        return self._there[ids]

    def found(self, number: int, place: SamplePlace) -> Pixels | None:
        """Return the pixels of a sample; None where they are not there, or are not what was written."""
        try:
            kept = self._shard(place.shard)
            checksum = int(kept.checksums[place.row])
            if not checksum:
                return None
            height, width = kept.shapes[place.row].tolist()
            data = os.pread(kept.pixels, 3 * height * width, int(kept.begins[place.row]))
        except OSError as error:
            self._give_up(error)
            return None
        whole = _checksum(data) == checksum
        self._there[number] = whole
        return np.frombuffer(data, np.uint8).reshape(height, width, 3) if whole else None

    def has_room(self, number: int) -> bool:
        """Say whether one more sample may be kept, of the size that those have which this process wrote."""
        return self._trouble is None and self._bytes + self._bytes // max(1, self._written) <= self._most

    def keep(self, number: int, place: SamplePlace, pixels: Pixels) -> None:
        """Write the pixels of a sample into their place; a full disk ends the keeping, not the training."""
        try:
            kept = self._shard(place.shard)
            if tuple(kept.shapes[place.row]) != pixels.shape[:2] or not self._takes(pixels.nbytes):
                return  # its size was not known, or there is no room
            data = np.ascontiguousarray(pixels).data.cast("B")
            begin, done = int(kept.begins[place.row]), 0
            while done < len(data):
                done += os.pwrite(kept.pixels, data[done:], begin + done)
            kept.checksums[place.row] = _checksum(data)
        except OSError as error:
            self._give_up(error)
            return
        self._there[number] = True

    def _takes(self, size: int) -> bool:
        """Take some of the bytes there may be, if they are left."""
        with self._lock:
            if self._trouble is not None or self._bytes + size > self._most:
                return False
            self._bytes += size
            self._written += 1
            return True

    @property
    def use(self) -> CacheUse:
        """What it holds, as far as this process has written it or seen it."""
        return CacheUse(
            where=str(self._folder.parent),
            samples=int(self._there.sum()),
            bytes=self._bytes,
            most_bytes=self._most,
            trouble=self._trouble,
        )

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for kept in self._shards.values():
                os.close(kept.pixels)
            self._shards.clear()

    def _give_up(self, error: OSError) -> None:
        self._trouble = f"{self._folder}: {error.strerror or error}"

    def _shard(self, shard: int) -> _ShardFiles:
        with self._lock:
            if shard not in self._shards:
                self._shards[shard] = self._opened(shard)
            return self._shards[shard]

    def _opened(self, shard: int) -> _ShardFiles:
        shapes = self._shapes(shard)
        begins = np.append(0, np.cumsum(3 * shapes.prod(axis=1)))
        self._folder.mkdir(parents=True, exist_ok=True)
        name = self._folder / f"{shard:06d}"
        file = os.open(name.with_suffix(".checksums"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(file, 0, 4 * max(1, len(shapes)))  # memory that is mapped has to be there
        finally:
            os.close(file)
        checksums = np.memmap(name.with_suffix(".checksums"), np.uint32, "r+", shape=(max(1, len(shapes)),))
        pixels = os.open(name.with_suffix(".pixels"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return _ShardFiles(pixels, checksums, begins, shapes)


def _checksum(data: bytes | memoryview) -> int:
    """Return a checksum that is never 0."""
    return isal_zlib.crc32(data) or 1


def cache_in(where: str, most_bytes: int | None, dataset: ShardedDataset, kind: str, shapes: Shapes) -> DecodedCache:
    """Return a cache of a data set.

    Args:
        where: "ram", or a folder.
        most_bytes: Of all ranks of this machine; None: 40% of what is free.
        dataset: Whose pictures are kept.
        kind: What of them, and how decoded: others are kept apart.
        shapes: Of what is kept.

    Raises:
        EnvironmentFault: The folder cannot be used.
    """
    if where == "ram":
        free = available_bytes(LocalFiles()) or 0.0
        return InMemory(len(dataset), int((_OF_FREE * free if most_bytes is None else most_bytes) / ranks_on_host()))
    folder = Path(where)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = float(shutil.disk_usage(folder).free)
        own = folder / f"pixels-{key_of_pixels(dataset.contents, kind)}"
        there = _bytes_below(own)
    except OSError as error:
        raise EnvironmentFault(
            f"cache {where} cannot be used: {error.strerror or error}; give another folder"
        ) from error
    most = _OF_FREE * (free + there) if most_bytes is None else most_bytes
    return OnDisk(own, shapes, len(dataset), max(0, int((most - there) / ranks_on_host())))


def key_of_pixels(contents: Contents, kind: str) -> str:
    """Return a name for pixels: another one for other shards, or another kind."""
    told = [kind, *(f"{shard.file} {shard.bytes} {shard.crc32}" for shard in contents.shards)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:20]


def _bytes_below(folder: Path) -> int:
    """Return the bytes that files take on their disk; holes in them take none."""
    files: Sequence[Path] = list(folder.glob("*")) if folder.is_dir() else []
    return sum(512 * file.stat().st_blocks for file in files)
