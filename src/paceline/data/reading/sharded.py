"""A sharded dataset: samples are read by their number, and checked against their checksums."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.format.contents import Blocks
from paceline.data.format.folders import Folder, LocalFolder, Piece, Reading, Stop, is_url, local_name
from paceline.data.format.index import Array, DamagedData, ShardIndex
from paceline.data.format.model import KEY, Column, Contents, shown
from paceline.data.reading.pictures import decoder_for, value_of
from paceline.data.remote.folder import RemoteFolder
from paceline.data.remote.settings import chosen

Numbers = NDArray[np.int64]
_KEPT_INDEXES = 4096  # indexes of shards that stay in memory


class SamplePlace(NamedTuple):
    """The shard and row of a sample."""

    shard: int
    row: int  # the number of the sample in the shard


class ShardedDataset:
    """A dataset from `paceline data convert`, local or in an object store. Reading is safe from several threads."""

    def __init__(self, folder: str | os.PathLike[str], **remote: Any) -> None:
        """Open a dataset; only its description and its table of blocks are read.

        Args:
            folder: A path, or a URL that fsspec knows (``s3://bucket/photos``, ``https://...``).
            remote: Settings for a URL, from `paceline.data.remote.settings.RemoteSettings`, such as `cache`.

        Raises:
            UsageError: The folder has no dataset.
            EnvironmentFault: The store does not answer, or the package for its protocol is not installed.
            DamagedData: The description cannot be read.
        """
        self._given, self._remote = os.fspath(folder), remote
        self._open(_folder_of(folder, remote))

    def _open(self, folder: Folder) -> None:
        self._folder = folder
        self.contents: Contents = self._folder.contents()
        self.blocks: Blocks = self._folder.blocks(self.contents)
        sizes = [shard.samples for shard in self.contents.shards]
        self._first = np.append(0, np.cumsum(sizes)).astype(np.int64)
        self._locks = [threading.Lock() for _ in sizes]
        self.indexes: dict[int, ShardIndex] = {}  # the indexes in memory, by shard

    def __len__(self) -> int:
        return self.contents.samples

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self._given, self._remote)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a sample as a dict of values by column; images are arrays, missing values None.

        A `Loader` reads shards in large pieces and decodes only what a crop needs, which is much faster.

        Args:
            number: The number of the sample, from 0; negative numbers count from the end.

        Raises:
            IndexError: There is no such sample.
            DamagedData: The sample is damaged or cannot be read.
        """
        try:
            place = operator.index(number)
        except TypeError:
            raise TypeError(
                f"{number!r} is not the number of a sample; for several samples use torch.utils.data.Subset"
            ) from None
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no sample {place}; the data set has {len(self):,} samples")
        return sample_of(self, place % len(self), self.contents.columns)

    @property
    def address(self) -> str:
        """The path, or the URL without user and query."""
        return self._folder.address

    @property
    def folder(self) -> Path:
        """The local folder.

        Raises:
            UsageError: The dataset is in a store.
        """
        if not isinstance(self._folder, LocalFolder):
            raise UsageError(
                f"{self.address} is not a folder on this machine, and one is needed; copy it to a folder first"
            )
        return self._folder.path

    @property
    def remote(self) -> RemoteFolder | None:
        """The folder in an object store, or None for a local dataset."""
        return self._folder if isinstance(self._folder, RemoteFolder) else None

    def reading(self) -> Reading:
        """Return an object that reads pieces of shards."""
        return self._folder.reading(self.index)

    def piece(self, block: int) -> Piece:
        """Return the byte range of a block."""
        shard, _, begin, end = self.blocks[block].tolist()
        return Piece(shard, begin, end)

    def places(self, ids: Numbers) -> list[SamplePlace]:
        """Return the shard and row of each sample."""
        shards = np.searchsorted(self._first, ids, side="right") - 1
        rows = ids - self._first[shards]
        return list(map(SamplePlace, shards.tolist(), rows.tolist()))

    def index(self, shard: int, stop: Stop | None = None) -> ShardIndex:
        """Return the index of a shard, from memory or the folder.

        Args:
            shard: The number of the shard.
            stop: Cancels the wait for a store.

        Raises:
            LostPart: The index cannot be read.
        """
        found = self.indexes.get(shard)
        if found is not None:
            return found
        with self._locks[shard]:
            found = self.indexes.get(shard)
            if found is None:
                found = self._folder.index(shard, self.contents.shards[shard], stop or Stop())
                for oldest in list(self.indexes)[: len(self.indexes) + 1 - _KEPT_INDEXES]:
                    self.indexes.pop(oldest, None)
                self.indexes[shard] = found
        return found

    def samples_in(self, block: int) -> int:
        """Return the number of samples in a block."""
        first = self.blocks["first"]
        after = first[block + 1] if block + 1 < len(first) else self.contents.samples
        return int(after - first[block])

    def numbers(self, name: str, places: Sequence[SamplePlace]) -> Array:
        """Return the values of a column of numbers for some samples."""
        return self.gathered(name, ("value",), places)["value"]

    def gathered(self, name: str, keys: Sequence[str], places: Sequence[SamplePlace]) -> dict[str, Array]:
        """Return entries of the index for some samples.

        Args:
            name: The column.
            keys: The properties, such as "offset".
            places: The shard and row of each sample.

        Returns:
            For each property an array with one entry for each sample.
        """
        shards = np.array([place.shard for place in places], np.int64)
        rows = np.array([place.row for place in places], np.int64)
        found: dict[str, Array] = {}
        for shard in np.unique(shards).tolist():
            own, arrays = shards == shard, self.index(shard).arrays
            for key in keys:
                values = arrays[f"{name}.{key}"]
                if key not in found:
                    found[key] = np.empty(len(places), values.dtype)
                found[key][own] = values[rows[own]]
        return found

    def intervals(self, name: str, places: Sequence[SamplePlace]) -> list[NDArray[np.int32]]:
        """Return for each image of a column the byte offsets of the intervals that can be decoded alone."""
        own: dict[int, tuple[NDArray[np.int32], Numbers]] = {}
        found = []
        for shard, row in places:
            if shard not in own:
                arrays = self.index(shard).arrays
                intervals, first = (arrays[f"{name}.{key}"] for key in ("intervals", "first_interval"))
                own[shard] = intervals.astype(np.int32, copy=False), first.astype(np.int64, copy=False)
            intervals, first = own[shard]
            found.append(intervals[first[row] : first[row + 1]])
        return found

    def name(self, place: SamplePlace) -> str:
        """Return the name of a sample for messages: shard, row, and original file."""
        shard = self.contents.shards[place.shard].file
        try:
            return f"{shard}, sample {place.row} ({shown(self.index(place.shard).names[place.row])})"
        except (DamagedData, IndexError):
            return f"{shard}, sample {place.row}"

    def file(self, shard: int) -> Path:
        """Return the local path of a shard."""
        return self.folder / self.contents.shards[shard].file

    def checked(self, name: str, place: SamplePlace, data: memoryview, length: int, crc32: int) -> memoryview:
        """Return the bytes of a value after a check of their length and checksum.

        Args:
            name: The column, for messages.
            place: The shard and row of the sample, for messages.
            data: The bytes.
            length: The expected number of bytes.
            crc32: The expected checksum.

        Raises:
            DamagedData: The length or the checksum differs.
        """
        if len(data) != length:
            raise DamagedData(f"{self.name(place)}: {name} is truncated: {len(data):,} of {length:,} bytes")
        if isal_zlib.crc32(data) != crc32:
            raise DamagedData(f"{self.name(place)}: {name} is damaged: its checksum does not match")
        return data

    def payload(self, name: str, place: SamplePlace) -> bytes:
        """Read the bytes of one value of one sample.

        Raises:
            DamagedData: The bytes are damaged or cannot be read.
        """
        told = self.gathered(name, ("offset", "length", "crc32"), [place])
        offset, length, crc32 = (int(values[0]) for values in told.values())
        block = int(np.searchsorted(self.blocks["first"], self._first[place.shard] + place.row, side="right")) - 1
        data = self._folder.part(self.piece(block), offset, length, self.index)
        return bytes(self.checked(name, place, data, length, crc32))


def sample_of(
    dataset: ShardedDataset, number: int, columns: Sequence[Column], *, exact: bool = False
) -> dict[str, Any]:
    """Return the values of a sample in some columns, as a dict by column.

    Args:
        dataset: The dataset.
        number: The number of the sample, from 0.
        columns: The columns to return, with the modes to which images are decoded.
        exact: Whether images are decoded bit for bit as PIL does.

    Raises:
        DamagedData: The sample is damaged or cannot be read.
    """
    (place,) = dataset.places(np.array([number]))
    decoder = decoder_for(columns, exact=exact)

    def value(column: Column) -> Any:
        if column.name == KEY:
            return sample_keys(dataset, [place])[0]
        if missing_of(dataset, column, [place])[0]:
            return None
        if column.is_number:
            return dataset.numbers(column.name, [place]).tolist()[0]
        return value_of(column, memoryview(dataset.payload(column.name, place)), decoder)

    return {column.name: value(column) for column in columns}


def missing_of(dataset: ShardedDataset, column: Column, places: Sequence[SamplePlace]) -> list[bool]:
    """Return for each sample whether its value in a column is missing."""
    if not column.optional:
        return [False] * len(places)
    if not column.is_number:
        found: list[bool] = (dataset.gathered(column.name, ("suffix",), places)["suffix"] == b"").tolist()
        return found
    arrays = [dataset.index(place.shard).arrays.get(f"{column.name}.missing") for place in places]
    return [array is not None and bool(array[place.row]) for array, place in zip(arrays, places, strict=True)]


def sample_keys(dataset: ShardedDataset, places: Sequence[SamplePlace]) -> list[str]:
    """Return the names of samples, such as their original files."""
    return [dataset.index(place.shard).names[place.row] for place in places]


def _folder_of(folder: str | os.PathLike[str], remote: dict[str, Any]) -> Folder:
    """Return the folder for a path or a URL."""
    named = os.fspath(folder)
    if is_url(named):
        return RemoteFolder(named, chosen(remote))
    if remote:
        raise UsageError(f"{', '.join(remote)} is for data sets in a store, and {named} is a folder; give a URL")
    return LocalFolder(Path(local_name(named)))


def _opened(address: str, remote: dict[str, Any]) -> ShardedDataset:
    """Open a dataset again in another process (for pickle)."""
    return ShardedDataset(address, **remote)
