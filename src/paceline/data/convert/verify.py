"""Verification of a dataset: every tar, every index and all bytes of every sample, against their checksums."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from paceline.data.convert.shard_writer import crc32_of
from paceline.data.format.contents import blocks_of, write_contents
from paceline.data.format.index import DamagedData
from paceline.data.format.model import Shard
from paceline.data.reading.sharded import SamplePlace, ShardedDataset
from paceline.data.remote.asking import Unfetched


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of a verification."""

    samples: int  # good samples
    bytes: int  # of the good samples
    problems: tuple[str, ...]


def verify(dataset: ShardedDataset, progress: Callable[[int, int], None]) -> Verified:
    """Read all of a dataset and compare it with its checksums. A dataset in a store is read without the cache.

    Args:
        dataset: The dataset.
        progress: Is called with the number of verified shards and of all shards.
    """
    good = read = 0
    problems: list[str] = []
    for number, shard in enumerate(dataset.contents.shards):
        checked = _checked if dataset.remote is None else _copied
        for found in checked(dataset, number, shard):
            if isinstance(found, str):
                problems.append(found)
            else:
                good, read = good + 1, read + found
        progress(number + 1, len(dataset.contents.shards))
    if not problems:
        problems += _blocks(dataset)
    return Verified(samples=good, bytes=read, problems=tuple(problems))


def _blocks(dataset: ShardedDataset) -> list[str]:
    """Return a message if the table of blocks does not match the shards, else an empty list."""
    contents = dataset.contents
    columns = [column.name for column in contents.columns if not column.is_number]
    firsts = np.append(0, np.cumsum([shard.samples for shard in contents.shards])).tolist()
    cut = [blocks_of(number, firsts[number], dataset.index(number), columns) for number in range(len(contents.shards))]
    if np.array_equal(np.concatenate(cut), dataset.blocks):
        return []
    return [f"the list of blocks of {dataset.address} is damaged; `paceline data verify --repair` rebuilds it"]


def _copied(dataset: ShardedDataset, number: int, shard: Shard) -> Iterator[str | int]:
    """Copy a shard from a store to a temporary folder, and check the copy."""
    assert dataset.remote is not None
    with TemporaryDirectory(prefix="paceline-verify-") as made:
        folder = Path(made)
        write_contents(folder, dataset.contents, dataset.blocks)
        try:
            for name, size in ((shard.index, shard.index_bytes), (shard.file, shard.bytes)):
                dataset.remote.copy(name, size, folder / name)
        except Unfetched as error:
            yield str(error)
            return
        yield from _checked(ShardedDataset(folder), number, shard)


def _checked(dataset: ShardedDataset, number: int, shard: Shard) -> Iterator[str | int]:
    """Yield the number of bytes of each good sample, and a message for each problem."""
    try:
        _index(dataset, shard)
        names = [column.name for column in dataset.contents.columns if not column.is_number]
        rows = len(dataset.index(number).names)
    except DamagedData as error:
        yield str(error)
        return
    if rows != shard.samples:
        yield f"{shard.file} has {rows:,} samples in its index, but {shard.samples:,} were written"
    if not (dataset.folder / shard.file).exists():
        yield f"{dataset.folder / shard.file} is missing, with its {shard.samples:,} samples"
        return
    yield from _archive(dataset, shard)
    for row in range(min(rows, shard.samples)):
        try:
            yield sum(len(dataset.payload(name, SamplePlace(number, row))) for name in names)
        except DamagedData as error:
            yield str(error)


def _index(dataset: ShardedDataset, shard: Shard) -> None:
    path = dataset.folder / shard.index
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DamagedData(f"{path}, the index of {shard.file}, cannot be read: {error.strerror}") from error
    if zlib.crc32(packed) != shard.index_crc32:
        raise DamagedData(f"{path} is damaged: its checksum does not match")


def _archive(dataset: ShardedDataset, shard: Shard) -> Iterator[str]:
    """Check the size and checksum of a tar, and read it with `tarfile`; yield a message for each problem."""
    path = dataset.folder / shard.file
    try:
        size = path.stat().st_size
        if size != shard.bytes:
            yield f"{path} has {size:,} bytes, but {shard.bytes:,} were written"
        with tarfile.open(path, "r:") as archive:
            for _ in archive:
                pass
        if size == shard.bytes and crc32_of(path) != shard.crc32:
            yield f"{path} is damaged: its checksum does not match"
    except (OSError, tarfile.TarError) as error:
        yield f"{path} cannot be read as a tar: {error}"
