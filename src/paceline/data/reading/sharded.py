"""A data set of shards. Samples are found and read by their number; each is checked against its checksum."""

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
from paceline.data.format.folders import LOCAL, Folder, LocalFolder, Piece, Reading, Stop, is_url
from paceline.data.format.index import Array, DamagedData, ShardIndex
from paceline.data.format.model import KEY, Column, Contents, shown
from paceline.data.reading.pictures import decoder_for, value_of
from paceline.data.remote.folder import RemoteFolder
from paceline.data.remote.settings import chosen

Numbers = NDArray[np.int64]
_KEPT_INDEXES = 4096  # of shards


class SamplePlace(NamedTuple):
    """Where a sample lies."""

    shard: int
    row: int  # in the shard


class ShardedDataset:
    """Shards as `paceline data convert` writes them, here or in a store. Reading is safe from several threads."""

    def __init__(self, folder: str | os.PathLike[str], **remote: Any) -> None:
        """Open a data set; only what it says of itself is read.

        Args:
            folder: Where it is: a path, or a URL that fsspec knows (``s3://bucket/photos``, ``https://...``).
            remote: Of a URL, those of `paceline.data.remote.settings.RemoteSettings`: `cache`, `cache_bytes` and more.

        Raises:
            UsageError: There is none in the folder.
            EnvironmentFault: The store does not answer, or a package that speaks with it is not there.
            DamagedData: It cannot be read.
        """
        self._given, self._remote = os.fspath(folder), remote
        self._open(_folder_of(folder, remote))

    def _open(self, folder: Folder) -> None:
        self._folder = folder
        self.contents: Contents = self._folder.contents()
        self.blocks: Blocks = self._folder.blocks()
        sizes = [shard.samples for shard in self.contents.shards]
        self._first = np.append(0, np.cumsum(sizes)).astype(np.int64)
        self._locks = [threading.Lock() for _ in sizes]
        self.indexes: dict[int, ShardIndex] = {}  # that were read, by shard

    def __len__(self) -> int:
        return self.contents.samples

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self._given, self._remote)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a sample: its values by column, images as arrays, None where it has none.

        A `Loader` reads shards in large pieces and decodes only what a crop needs, which is much faster.

        Args:
            number: From 0, or from -1 backwards from the last one.

        Raises:
            IndexError: There is no such sample.
            DamagedData: It cannot be read.
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
        """Where it is; of a URL without user and query."""
        return self._folder.address

    @property
    def folder(self) -> Path:
        """The folder, on this machine.

        Raises:
            UsageError: It is elsewhere.
        """
        if not isinstance(self._folder, LocalFolder):
            raise UsageError(
                f"{self.address} is not a folder on this machine, and one is needed; copy it to a folder first"
            )
        return self._folder.path

    @property
    def remote(self) -> RemoteFolder | None:
        """The store that it is in; None: it is on this machine."""
        return self._folder if isinstance(self._folder, RemoteFolder) else None

    def reading(self) -> Reading:
        """Return what reads blocks."""
        return self._folder.reading(self.index)

    def piece(self, block: int) -> Piece:
        """Return the bytes that a block is."""
        shard, _, begin, end = self.blocks[block].tolist()
        return Piece(shard, begin, end)

    def places(self, ids: Numbers) -> list[SamplePlace]:
        """Return where samples lie."""
        shards = np.searchsorted(self._first, ids, side="right") - 1
        rows = ids - self._first[shards]
        return list(map(SamplePlace, shards.tolist(), rows.tolist()))

    def index(self, shard: int, stop: Stop | None = None) -> ShardIndex:
        """Return the index of a shard.

        Args:
            shard: Its number.
            stop: Ends waiting for a store.

        Raises:
            LostPart: It cannot be had.
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
        """Return how many samples a block has."""
        first = self.blocks["first"]
        after = first[block + 1] if block + 1 < len(first) else self.contents.samples
        return int(after - first[block])

    def numbers(self, name: str, places: Sequence[SamplePlace]) -> Array:
        """Return the values of a column of numbers."""
        return self.gathered(name, ("value",), places)["value"]

    def gathered(self, name: str, keys: Sequence[str], places: Sequence[SamplePlace]) -> dict[str, Array]:
        """Return arrays of the index at some samples, shard by shard."""
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
        """Return where intervals begin that can be decoded alone, of each picture of a column."""
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
        """Return what a sample is called in a message: shard, number in it, and the file that it was."""
        shard = self.contents.shards[place.shard].file
        try:
            return f"{shard}, sample {place.row} ({shown(self.index(place.shard).names[place.row])})"
        except (DamagedData, IndexError):
            return f"{shard}, sample {place.row}"

    def file(self, shard: int) -> Path:
        """Return the file of a shard, on this machine."""
        return self.folder / self.contents.shards[shard].file

    def checked(self, name: str, place: SamplePlace, data: memoryview, length: int, crc32: int) -> memoryview:
        """Return the bytes of a sample, if they are those that were written.

        Raises:
            DamagedData: They are others, or there are fewer.
        """
        if len(data) != length:
            raise DamagedData(f"{self.name(place)}: {name} is truncated: {len(data):,} of {length:,} bytes")
        if isal_zlib.crc32(data) != crc32:
            raise DamagedData(f"{self.name(place)}: {name} is damaged: its checksum does not match")
        return data

    def payload(self, name: str, place: SamplePlace) -> bytes:
        """Read one value of one sample by itself.

        Raises:
            DamagedData: It is not what was written.
        """
        told = self.gathered(name, ("offset", "length", "crc32"), [place])
        offset, length, crc32 = (int(values[0]) for values in told.values())
        block = int(np.searchsorted(self.blocks["first"], self._first[place.shard] + place.row, side="right")) - 1
        data = self._folder.part(self.piece(block), offset, length, self.index)
        return bytes(self.checked(name, place, data, length, crc32))


def sample_of(
    dataset: ShardedDataset, number: int, columns: Sequence[Column], *, exact: bool = False
) -> dict[str, Any]:
    """Return columns of a sample.

    Args:
        dataset: Where it is.
        number: Of the sample, from 0.
        columns: Those that are wanted, with the modes that their images get.
        exact: Whether pictures are decoded as PIL does.

    Raises:
        DamagedData: It cannot be read.
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
    """Say of which samples there is no value in a column."""
    if not column.optional:
        return [False] * len(places)
    if not column.is_number:
        found: list[bool] = (dataset.gathered(column.name, ("suffix",), places)["suffix"] == b"").tolist()
        return found
    arrays = [dataset.index(place.shard).arrays.get(f"{column.name}.missing") for place in places]
    return [array is not None and bool(array[place.row]) for array, place in zip(arrays, places, strict=True)]


def sample_keys(dataset: ShardedDataset, places: Sequence[SamplePlace]) -> list[str]:
    """Return what samples are called: the files that they were."""
    return [dataset.index(place.shard).names[place.row] for place in places]


def _folder_of(folder: str | os.PathLike[str], remote: dict[str, Any]) -> Folder:
    """Return the folder that a path or a URL names."""
    named = os.fspath(folder)
    if is_url(named):
        return RemoteFolder(named, chosen(remote))
    if remote:
        raise UsageError(f"{', '.join(remote)} is for data sets in a store, and {named} is a folder; give a URL")
    return LocalFolder(Path(named.removeprefix(LOCAL)))


def _opened(address: str, remote: dict[str, Any]) -> ShardedDataset:
    """Return a data set that was sent to another process."""
    return ShardedDataset(address, **remote)
