"""Access to the folder of a dataset: on this machine, or by the protocol `Folder` in a store (`data.remote`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from paceline.data.format.contents import Blocks, read_blocks, read_contents, read_shard_index
from paceline.data.format.index import DamagedData, ShardIndex
from paceline.data.format.model import Contents, Shard

_LOCAL = "file://"
# After two small reads in a row, Linux reads ahead and batches the pages of a piece: half the CPU time of one
# large read, and 1.5 times the rate (pieces of 2 MiB in any order, pages not in memory, Linux 6.18).
_FIRST_BYTES = 64 << 10
_KEPT_OPEN = 64  # files of shards that stay open


def is_url(named: str | os.PathLike[str]) -> bool:
    """Return whether a name is the URL of a store; other names are local paths."""
    return "://" in os.fspath(named) and not os.fspath(named).startswith(_LOCAL)


def local_name(named: str | os.PathLike[str]) -> str:
    """Return a path without the prefix ``file://``. Names without this prefix are returned unchanged."""
    return os.fspath(named).removeprefix(_LOCAL)


class LostPart(DamagedData):
    """A part of a dataset cannot be read: the index of a shard, or bytes of it."""

    def __init__(self, message: str, shard: int = -1, begin: int | None = None) -> None:
        """Create the error.

        Args:
            message: The reason.
            shard: The number of the shard; -1 if the error comes from another process, which sends only the message.
            begin: The offset of the lost bytes in the shard; None if the index, and so the whole shard, is lost.
        """
        super().__init__(message)
        self.shard = shard
        self.begin = begin


class Stopped(Exception):
    """A read was stopped by `Stop`, for example because the loader was closed."""


class Stop:
    """Cancels waits and requests, so that closing a loader does not wait for a store that stalls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._pending: set[Future[Any]] = set()

    def now(self) -> None:
        """Cancel all waits and requests, also future ones."""
        self._event.set()
        with self._lock:
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def wait(self, seconds: float) -> None:
        """Sleep for some seconds.

        Raises:
            Stopped: `now` was called, before or during the sleep.
        """
        if self._event.wait(seconds):
            raise Stopped

    @contextmanager
    def ending(self, future: Future[Any]) -> Iterator[None]:
        """Return a context in which `now` also cancels a future; at the end the future is cancelled in any case.

        Raises:
            Stopped: `now` was called before.
        """
        with self._lock:
            self._pending.add(future)
        try:
            self.wait(0)
            yield
        finally:
            with self._lock:
                self._pending.discard(future)
            future.cancel()


class Piece(NamedTuple):
    """A range of bytes of a shard, which is read as a whole."""

    shard: int
    begin: int
    end: int


class Filled(NamedTuple):
    """The result of a read: the number of bytes, and whether they came from a disk or a store."""

    bytes: int  # read; fewer than requested if the file ends before
    stage: str  # "read" from a disk, or "fetch" from a store


class Reading(Protocol):
    """Reads pieces of shards; several threads can read at once."""

    readers: int  # the least number of reader threads

    def fill(self, piece: Piece, into: memoryview) -> Filled:
        """Read a piece of a shard into a buffer as long as the piece.

        Raises:
            LostPart: The piece cannot be read.
            Stopped: `stop` was called.
        """

    def stop(self) -> None:
        """End running reads soon."""

    def close(self) -> None:
        """Close files and connections; no read may be running."""


IndexOf = Callable[[int, Stop], ShardIndex]


class Folder(Protocol):
    """The folder of a sharded dataset, local or in a store."""

    @property
    def address(self) -> str:
        """The path or URL for messages."""

    def contents(self) -> Contents:
        """Return the description of the dataset; to be called once, before the other methods."""

    def blocks(self, contents: Contents) -> Blocks:
        """Return the table of blocks.

        Args:
            contents: The description of the dataset.

        Raises:
            DamagedData: The table is damaged.
        """

    def index(self, number: int, shard: Shard, stop: Stop) -> ShardIndex:
        """Return the index of a shard.

        Raises:
            LostPart: The index cannot be read.
        """

    def part(self, piece: Piece, begin: int, length: int, index_of: IndexOf) -> memoryview:
        """Return `length` bytes of a piece of a shard, or fewer if the file ends before.

        Args:
            piece: The piece.
            begin: The offset of the first byte in the shard.
            length: The number of bytes.
            index_of: Returns the index of a shard.

        Raises:
            LostPart: The bytes cannot be read.
        """

    def reading(self, index_of: IndexOf) -> Reading:
        """Return an object that reads pieces of shards."""


class LocalFolder:
    """The folder of a sharded dataset on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shards: list[Path] = []

    @property
    def address(self) -> str:
        """The path of the folder."""
        return str(self.path)

    def contents(self) -> Contents:
        """Return the description of the dataset."""
        found = read_contents(self.path)
        self._shards = [self.path / shard.file for shard in found.shards]
        return found

    def blocks(self, contents: Contents) -> Blocks:
        """Return the table of blocks."""
        return read_blocks(self.path, contents)

    def index(self, number: int, shard: Shard, stop: Stop) -> ShardIndex:
        """Return the index of a shard."""
        try:
            return read_shard_index(self.path, shard.file, shard.index, shard.index_crc32)
        except DamagedData as error:
            raise LostPart(str(error), number) from error

    def part(self, piece: Piece, begin: int, length: int, index_of: IndexOf) -> memoryview:
        """Return `length` bytes of a piece of a shard from an offset in the file, or fewer if the file ends before."""
        path = self._shards[piece.shard]
        try:
            with path.open("rb") as file:
                return memoryview(os.pread(file.fileno(), length, begin))
        except OSError as error:
            raise LostPart(f"{path} cannot be read: {error.strerror or error}", piece.shard, piece.begin) from error

    def reading(self, index_of: IndexOf) -> LocalReading:
        """Return an object that reads pieces of shards."""
        return LocalReading(self._shards)


class LocalReading:
    """Reads pieces of local files.

    The kernel's read-ahead depends on the last read of each open file. So each piece is read from an open file that no
    other thread uses meanwhile. Some files stay open.
    """

    readers = 0

    def __init__(self, shards: list[Path]) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = []  # shard and open file, the last used at the end

    def fill(self, piece: Piece, into: memoryview) -> Filled:
        """Read a piece of a shard into a buffer as long as the piece."""
        try:
            with self._file(piece.shard) as file:
                return Filled(_read(file, piece.begin, into), "read")
        except OSError as error:
            path = self._shards[piece.shard]
            raise LostPart(f"{path} cannot be read: {error.strerror or error}", piece.shard, piece.begin) from error

    def stop(self) -> None:
        """Do nothing, because a read from a disk ends by itself."""

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for _, file in self._free:
                os.close(file)
            self._free.clear()

    @contextmanager
    def _file(self, shard: int) -> Iterator[int]:
        """Return a context with an open file of a shard that no other thread uses."""
        file = self._taken(shard)
        if file is None:
            file = os.open(self._shards[shard], os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield file
        finally:
            with self._lock:
                self._free.append((shard, file))
                if len(self._free) > _KEPT_OPEN:
                    os.close(self._free.pop(0)[1])

    def _taken(self, shard: int) -> int | None:
        with self._lock:
            for place, (of, file) in enumerate(self._free):
                if of == shard:
                    del self._free[place]
                    return file
        return None


def _read(file: int, begin: int, into: memoryview) -> int:
    """Fill a buffer from an offset of a file, and return the number of bytes, fewer if the file ends before."""
    done = 0
    while done < len(into):
        end = done + _FIRST_BYTES if done < 2 * _FIRST_BYTES else len(into)
        count = os.preadv(file, [into[done:end]], begin + done)
        if not count:
            break
        done += count
    return done
