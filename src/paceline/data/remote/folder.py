"""A folder of shards in an object store, read block by block through the cache on the local disk.

The order of an epoch mixes blocks of all shards: the first batch has samples of about thirty shards. So blocks are
fetched instead of shards (docs/decisions/0015). Each block is compared with the checksums of its samples before it is
used or cached.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
from isal import isal_zlib

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.contents import Blocks, blocks_in, contents_in
from paceline.data.format.folders import Filled, IndexOf, LostPart, Piece, Stop
from paceline.data.format.index import ShardIndex, read_index
from paceline.data.format.model import BLOCKS_FILE, CONTENTS_FILE, Contents, Shard
from paceline.data.remote.asking import Asker, Counts, Missing, Unfetched
from paceline.data.remote.cache import Cache
from paceline.data.remote.secrets import shown_url
from paceline.data.remote.settings import RemoteSettings, cache_folder
from paceline.data.remote.store import FsspecStore, Store

_LOOKS = 2  # fetches of bytes with a wrong checksum, as a transfer may go wrong
_KEPT_PIECES = 40  # pieces in memory for reads of single samples: more than one shuffle window
_COPIED_BYTES = 8 << 20  # of a request when a whole file is copied


class RemoteFolder:
    """A dataset in an object store."""

    def __init__(self, url: str, settings: RemoteSettings, store: Store | None = None) -> None:
        """Prepare to read a dataset; no request is made yet.

        Args:
            url: The URL, in fsspec's form.
            settings: The settings of the cache and of requests.
            store: Fetches the bytes; None for fsspec.

        Raises:
            UsageError: fsspec does not know the URL.
            EnvironmentFault: The package for this kind of store is not installed.
        """
        self.address = shown_url(url)
        self.settings = settings
        self.counts = Counts()
        self.store = store or FsspecStore(url, settings.storage_options)
        self.asker = Asker(self.store, url, settings, self.counts)
        self._shards: list[Shard] = []
        self._before: list[int] = []  # for each shard the bytes of all shards before it
        self._cache: Cache | None = None
        self._parts = _Parts()

    @property
    def cache(self) -> Cache | None:
        """The cache on the local disk; None without a cache, and before `contents` was called."""
        return self._cache

    def contents(self) -> Contents:
        """Fetch the description of the dataset, and open its cache.

        Raises:
            UsageError: There is no dataset at the URL.
            EnvironmentFault: The description cannot be fetched, or the cache cannot be used.
            DamagedData: The description is damaged.
        """
        try:
            text = self.asker.fetched(CONTENTS_FILE, None, None, Stop())
        except Missing as error:
            raise UsageError(
                f"no {CONTENTS_FILE} at {self.address}: not a data set; `paceline data convert SRC DEST` makes one, "
                "and any tool copies it to the store"
            ) from error
        found = contents_in(text, f"{self.address}/{CONTENTS_FILE}")
        self._shards = list(found.shards)
        self._before = [0, *np.cumsum([shard.bytes + shard.index_bytes for shard in self._shards]).tolist()]
        self._cache = self._opened_cache(hashlib.sha256(text).hexdigest()[:24])
        return found

    def blocks(self, contents: Contents) -> Blocks:
        """Fetch the table of blocks."""
        packed = self.asker.fetched(BLOCKS_FILE, None, None, Stop())
        return blocks_in(io.BytesIO(packed), contents, f"{self.address}/{BLOCKS_FILE}", "a copy of it")

    def index(self, number: int, shard: Shard, stop: Stop) -> ShardIndex:
        """Return the index of a shard, from the cache or the store.

        Raises:
            LostPart: The index cannot be fetched, or is damaged.
        """
        kept = f"{number:06d}/index"
        with self.turn(number, 0, stop):
            packed = bytearray(shard.index_bytes)
            if self._cache is None or not self._cache.read(kept, memoryview(packed)):
                packed = bytearray(self._fetched_index(number, shard, stop))
                self.keep(kept, packed)
        return read_index(shard.file, bytes(packed))

    def part(self, piece: Piece, begin: int, length: int, index_of: IndexOf) -> memoryview:
        """Return `length` bytes of a piece of a shard; the pieces that were read last stay in memory.

        Args:
            piece: The piece.
            begin: The offset of the first byte in the shard.
            length: The number of bytes.
            index_of: Returns the index of a shard.
        """
        data = self._parts.get(piece)
        if data is None:
            buffer = memoryview(bytearray(piece.end - piece.begin))
            done = RemoteReading(self, index_of).fill(piece, buffer).bytes
            data = self._parts.put(piece, buffer[:done])
        return data[begin - piece.begin : begin - piece.begin + length]

    def reading(self, index_of: IndexOf) -> RemoteReading:
        """Return an object that reads pieces of shards."""
        return RemoteReading(self, index_of)

    def copy(self, name: str, size: int, to: Path) -> None:
        """Copy a file of the dataset from the store to a local path, without the cache.

        Args:
            name: The name of the file.
            size: Its size in bytes.
            to: The local path.

        Raises:
            Unfetched: The file cannot be fetched.
        """
        with to.open("wb") as file:
            for begin in range(0, size, _COPIED_BYTES):
                file.write(self.asker.fetched(name, begin, min(size, begin + _COPIED_BYTES), Stop()))

    def shard(self, number: int) -> Shard:
        """Return a shard by its number."""
        return self._shards[number]

    def turn(self, number: int, offset: int, stop: Stop) -> AbstractContextManager[None]:
        """Return a context in which no other process of this machine fetches the same bytes of a shard.

        Args:
            number: The number of the shard.
            offset: The byte offset in the index of the shard followed by its data: 0 is the index.
            stop: Ends the wait.
        """
        if self._cache is None:
            return nullcontext()
        return self._cache.turn(self._before[number] + offset, stop, 2 * self.settings.request_s)

    def keep(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Write a piece to the cache, if there is one; count the pieces for which the cache has no room."""
        if self._cache is not None and not self._cache.keep(name, data):
            self.counts.not_kept += 1

    def _fetched_index(self, number: int, shard: Shard, stop: Stop) -> bytes:
        try:
            for _ in range(_LOOKS):
                packed = self.asker.fetched(shard.index, 0, shard.index_bytes, stop)
                if isal_zlib.crc32(packed) == shard.index_crc32:
                    return packed
        except Unfetched as error:
            raise LostPart(f"{shard.index}, the index of {shard.file}, cannot be fetched: {error}", number) from error
        raise LostPart(
            f"{self.address}/{shard.index}, the index of {shard.file}, is damaged: its checksum does not match; "
            "copy it to the store again",
            number,
        )

    def _opened_cache(self, dataset: str) -> Cache | None:
        folder = cache_folder(self.settings, os.environ)
        if folder is None:
            return None
        try:
            return Cache(folder, dataset, self.settings.cache_bytes)
        except EnvironmentFault:
            if self.settings.cache is not None:
                raise  # the user has set this folder
            return None


class RemoteReading:
    """Reads pieces from the cache on the disk, or else from the store."""

    def __init__(self, folder: RemoteFolder, index_of: IndexOf) -> None:
        self._folder = folder
        self._index_of = index_of
        self._stop = Stop()
        self.readers = folder.settings.requests

    def fill(self, piece: Piece, into: memoryview) -> Filled:
        """Read a piece of a shard into a buffer as long as the piece.

        Returns:
            The number of bytes, fewer if the shard is truncated, and "read" or "fetch" for the disk or the store.

        Raises:
            LostPart: The piece cannot be fetched.
            Stopped: The reading was stopped.
        """
        index = self._index_of(piece.shard, self._stop)  # also fetches the index with the first piece
        if not len(into):
            return Filled(0, "read")
        name = f"{piece.shard:06d}/{piece.begin}-{piece.end}"
        if self._kept(name, into):
            return Filled(len(into), "read")
        folder = self._folder
        with folder.turn(piece.shard, folder.shard(piece.shard).index_bytes + piece.begin, self._stop):
            if self._kept(name, into):  # another process has fetched it meanwhile
                return Filled(len(into), "read")
            done = self._fetch(piece, into, index)
            if done is None:
                folder.keep(name, into)
        return Filled(len(into) if done is None else done, "fetch")

    def stop(self) -> None:
        """End all requests and retries."""
        self._stop.now()

    def close(self) -> None:
        """Release the connections."""
        self._folder.store.release()

    def _kept(self, name: str, into: memoryview) -> bool:
        cache = self._folder.cache
        if cache is None or not cache.read(name, into):
            return False
        self._folder.counts.from_cache += 1
        return True

    def _fetch(self, piece: Piece, into: memoryview, index: ShardIndex) -> int | None:
        """Fetch a piece; return None if its checksums match, else the number of bytes received.

        The bad samples of a damaged piece are found when they are used.
        """
        done = 0
        for _ in range(_LOOKS):
            try:
                name = self._folder.shard(piece.shard).file
                data = self._folder.asker.fetched(name, piece.begin, piece.end, self._stop)
            except Unfetched as error:
                raise LostPart(f"cannot be fetched: {error}", piece.shard, piece.begin) from error
            done = len(data)
            into[:done] = data
            if done == len(into) and sound(index, piece, into):
                return None
        return done


class _Parts:
    """The most recently used pieces in memory, for a process that reads single samples."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Piece, memoryview] = OrderedDict()

    def get(self, piece: Piece) -> memoryview | None:
        with self._lock:
            if piece in self._kept:
                self._kept.move_to_end(piece)
            return self._kept.get(piece)

    def put(self, piece: Piece, data: memoryview) -> memoryview:
        with self._lock:
            self._kept[piece] = data
            while len(self._kept) > _KEPT_PIECES:
                self._kept.popitem(last=False)
        return data


def sound(index: ShardIndex, piece: Piece, data: memoryview) -> bool:
    """Return whether all values in a piece match their checksums in the index."""
    for key, offsets in index.arrays.items():
        if not key.endswith(".offset"):
            continue
        column = key.removesuffix(".offset")
        own = np.flatnonzero((offsets >= piece.begin) & (offsets < piece.end))  # type: ignore[operator]
        told = (index.arrays[f"{column}.{what}"][own].tolist() for what in ("offset", "length", "crc32"))
        for offset, length, crc32 in zip(*told, strict=True):
            begin = offset - piece.begin
            if isal_zlib.crc32(data[begin : begin + length]) != crc32:
                return False
    return True
