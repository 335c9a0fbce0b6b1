"""A cache of decoded images, in memory or in files on a local disk.

If a crop draws no random numbers, its results are cached, otherwise whole images. Nothing is evicted: every epoch needs
every sample once, so no sample is better to keep than another.
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
Shapes = Callable[[int], NDArray[np.int64]]  # shard -> heights and widths, [samples, 2]; 0: unknown
_OF_FREE = 0.4  # the default share of free memory or disk space


@dataclass(frozen=True, kw_only=True)
class CacheUse:
    """How much a cache holds, and its limit."""

    where: str  # "ram" or the folder
    samples: int
    bytes: int
    most_bytes: int
    trouble: str | None  # why the cache has stopped, other than its limit


class DecodedCache(Protocol):
    """A cache of pixels by sample number; safe from several threads."""

    def known(self, ids: Numbers) -> NDArray[np.bool_]:
        """Return a flag for each sample that is known to be cached, without reading files."""

    def found(self, number: int, place: SamplePlace) -> Pixels | None:
        """Return the pixels of a sample, or None if it is not cached."""

    def has_room(self, number: int) -> bool:
        """Return whether one more sample fits."""

    def keep(self, number: int, place: SamplePlace, pixels: Pixels) -> None:
        """Cache a copy of the pixels of a sample, if there is room."""

    @property
    def use(self) -> CacheUse:
        """How much the cache holds, and its limit."""

    def close(self) -> None:
        """Release memory and close files; cached files stay on the disk."""


class InMemory:
    """A cache in the memory of this process."""

    def __init__(self, samples: int, most_bytes: int) -> None:
        self._kept: dict[int, Pixels] = {}
        self._there = np.zeros(samples, np.bool_)
        self._most, self._bytes = most_bytes, 0
        self._lock = threading.Lock()

    def known(self, ids: Numbers) -> NDArray[np.bool_]:
        """Return a flag for each sample that is cached."""
        return self._there[ids]

    def found(self, number: int, place: SamplePlace) -> Pixels | None:
        """Return the pixels of a sample, or None if it is not cached."""
        return self._kept.get(number)

    def has_room(self, number: int) -> bool:
        """Return whether one more sample of the mean size fits."""
        return self._bytes + self._bytes // max(1, len(self._kept)) <= self._most

    def keep(self, number: int, place: SamplePlace, pixels: Pixels) -> None:
        """Cache a copy of the pixels of a sample, if they fit."""
        with self._lock:
            if number in self._kept or self._bytes + pixels.nbytes > self._most:
                return
            self._kept[number] = pixels.copy()
            self._there[number] = True
            self._bytes += pixels.nbytes

    @property
    def use(self) -> CacheUse:
        """How much the cache holds, and its limit."""
        return CacheUse(where="ram", samples=len(self._kept), bytes=self._bytes, most_bytes=self._most, trouble=None)

    def close(self) -> None:
        """Release the memory of all samples."""
        with self._lock:
            self._kept.clear()
            self._there[:] = False
            self._bytes = 0


@dataclass(frozen=True)
class _ShardFiles:
    """The cache files of one shard: pixels, at a fixed offset for each sample, and checksums, 0 if not cached."""

    pixels: int  # file descriptor
    checksums: NDArray[np.uint32]
    begins: NDArray[np.int64]
    shapes: NDArray[np.int64]


class OnDisk:
    """A cache in files, shared by all ranks of a machine and reused by later runs.

    Each sample has a fixed offset. The process that decodes a sample writes its pixels there, and then its checksum.
    Pixels that were not written completely do not match the checksum, and count as not cached.
    """

    def __init__(self, folder: Path, shapes: Shapes, samples: int, most_bytes: int) -> None:
        """Open a cache.

        Args:
            folder: A folder for this dataset and this kind of pixels only.
            shapes: Returns the heights and widths of the samples of a shard.
            samples: The number of samples in the dataset.
            most_bytes: The most bytes that this process adds.
        """
        self._folder, self._shapes = folder, shapes
        self._there = np.zeros(samples, np.bool_)
        self._most, self._bytes, self._written = most_bytes, 0, 0
        self._lock = threading.Lock()
        self._shards: dict[int, _ShardFiles] = {}
        self._trouble: str | None = None

    def known(self, ids: Numbers) -> NDArray[np.bool_]:
        """Return a flag for each sample that this process has read from the cache or written to it."""
        return self._there[ids]

    def found(self, number: int, place: SamplePlace) -> Pixels | None:
        """Return the pixels of a sample, or None if it is not cached or its checksum does not match."""
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
        """Return whether one more sample of the mean size that this process wrote fits."""
        return self._trouble is None and self._bytes + self._bytes // max(1, self._written) <= self._most

    def keep(self, number: int, place: SamplePlace, pixels: Pixels) -> None:
        """Write the pixels of a sample to the files, if they fit; a full disk stops the cache, not the training."""
        try:
            kept = self._shard(place.shard)
            if tuple(kept.shapes[place.row]) != pixels.shape[:2] or not self._takes(pixels.nbytes):
                return  # the size in the index is unknown, or there is no room
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
        """Reserve bytes for a sample, and return whether they are within the limit."""
        with self._lock:
            if self._trouble is not None or self._bytes + size > self._most:
                return False
            self._bytes += size
            self._written += 1
            return True

    @property
    def use(self) -> CacheUse:
        """How much this process has written or read, and the limit."""
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
            os.posix_fallocate(file, 0, 4 * max(1, len(shapes)))  # mapped memory must be allocated
        finally:
            os.close(file)
        checksums = np.memmap(name.with_suffix(".checksums"), np.uint32, "r+", shape=(max(1, len(shapes)),))
        pixels = os.open(name.with_suffix(".pixels"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return _ShardFiles(pixels, checksums, begins, shapes)


def _checksum(data: bytes | memoryview) -> int:
    """Return the CRC-32 of data, or 1 in place of 0."""
    return isal_zlib.crc32(data) or 1


def cache_in(where: str, most_bytes: int | None, dataset: ShardedDataset, kind: str, shapes: Shapes) -> DecodedCache:
    """Return a cache of the decoded images of a dataset.

    Args:
        where: "ram", or a folder.
        most_bytes: The limit for all ranks of this machine together; None for 40% of the free bytes.
        dataset: The dataset.
        kind: The kind of pixels, such as their crop and decoder; each kind has its own files.
        shapes: Returns the heights and widths of the cached pixels of a shard.

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
    """Return a name for the cached pixels of a dataset: 20 hex digits of a hash of its shards and the kind."""
    told = [kind, *(f"{shard.file} {shard.bytes} {shard.crc32}" for shard in contents.shards)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:20]


def _bytes_below(folder: Path) -> int:
    """Return the bytes that the files of a folder occupy on the disk, without holes."""
    files: Sequence[Path] = list(folder.glob("*")) if folder.is_dir() else []
    return sum(512 * file.stat().st_blocks for file in files)
