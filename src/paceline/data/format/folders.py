"""The folder of a data set, which its bytes come from: on this machine, or in a store (`paceline.data.remote`)."""

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

LOCAL = "file://"
# Linux takes a piece for a sequence, and its pages together, after two small reads in a row: half the CPU time of one
# large read, and 1.5 times the rate (pieces of 2 MiB in any order, pages not in memory, Linux 6.18).
_FIRST_BYTES = 64 << 10
_KEPT_OPEN = 64  # files of shards


def is_url(named: str | os.PathLike[str]) -> bool:
    """Say whether a data set is in a store; what is named otherwise is a path of this machine."""
    return "://" in os.fspath(named) and not os.fspath(named).startswith(LOCAL)


class LostPart(DamagedData):
    """A part of a data set that cannot be had: the index of a shard, or bytes of it."""

    def __init__(self, message: str, shard: int = -1, begin: int | None = None) -> None:
        """Say what is lost.

        Args:
            message: Why.
            shard: Its number; -1 where the error was sent here by another process, which sends the message alone.
            begin: Where the bytes begin in it; None: the whole shard, for its index is lost.
        """
        super().__init__(message)
        self.shard = shard
        self.begin = begin


class Stopped(Exception):
    """Who asked for bytes does not want them any more."""


class Stop:
    """Ends what waits: who closes a loader does not wait for a store that stalls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._pending: set[Future[Any]] = set()

    def now(self) -> None:
        """End all that waits, and all that begins to."""
        self._event.set()
        with self._lock:
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def wait(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            Stopped: It is over.
        """
        if self._event.wait(seconds):
            raise Stopped

    @contextmanager
    def ending(self, future: Future[Any]) -> Iterator[None]:
        """Have something in flight end with this too."""
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
    """Bytes of a shard that are read together."""

    shard: int
    begin: int
    end: int


class Filled(NamedTuple):
    """What was read."""

    bytes: int  # fewer than were asked for, where the file ends before
    stage: str  # that it belongs to: "read", or "fetch" from a store


class Reading(Protocol):
    """Reads pieces of shards; several threads at once."""

    readers: int  # at least, whatever a loader has

    def fill(self, piece: Piece, into: memoryview) -> Filled:
        """Read a piece.

        Raises:
            LostPart: It cannot be had.
            Stopped: It was told to stop.
        """

    def stop(self) -> None:
        """End what is being read, soon."""

    def close(self) -> None:
        """Let go of files and connections; nothing is being read any more."""


IndexOf = Callable[[int, Stop], ShardIndex]


class Folder(Protocol):
    """A data set of shards, wherever it is."""

    @property
    def address(self) -> str:
        """Where it is, as it was given."""

    def contents(self) -> Contents:
        """Return what it says of itself; asked once, before all else."""

    def blocks(self) -> Blocks:
        """Return its blocks."""

    def index(self, number: int, shard: Shard, stop: Stop) -> ShardIndex:
        """Return the index of a shard, by its number.

        Raises:
            LostPart: It cannot be had.
        """

    def part(self, piece: Piece, begin: int, length: int, index_of: IndexOf) -> memoryview:
        """Return some bytes of a piece by themselves; fewer where the file ends before.

        Raises:
            LostPart: They cannot be had.
        """

    def reading(self, index_of: IndexOf) -> Reading:
        """Return what reads pieces."""


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shards: list[Path] = []

    @property
    def address(self) -> str:
        """Its path."""
        return str(self.path)

    def contents(self) -> Contents:
        """Return what it says of itself."""
        found = read_contents(self.path)
        self._shards = [self.path / shard.file for shard in found.shards]
        return found

    def blocks(self) -> Blocks:
        """Return its blocks."""
        return read_blocks(self.path)

    def index(self, number: int, shard: Shard, stop: Stop) -> ShardIndex:
        """Return the index of a shard, by its number."""
        try:
            return read_shard_index(self.path, shard.file, shard.index)
        except DamagedData as error:
            raise LostPart(str(error), number) from error

    def part(self, piece: Piece, begin: int, length: int, index_of: IndexOf) -> memoryview:
        """Return some bytes of a piece by themselves."""
        path = self._shards[piece.shard]
        try:
            with path.open("rb") as file:
                return memoryview(os.pread(file.fileno(), length, begin))
        except OSError as error:
            raise LostPart(f"{path} cannot be read: {error.strerror or error}", piece.shard, piece.begin) from error

    def reading(self, index_of: IndexOf) -> LocalReading:
        """Return what reads pieces."""
        return LocalReading(self._shards)


class LocalReading:
    """Reads pieces of files.

    A file that is open knows what was read of it last, and foresees by that what is read next: each piece is read from
    one that nobody else reads meanwhile. Some are kept open.
    """

    readers = 0

    def __init__(self, shards: list[Path]) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = []  # shard and open file, what was used last comes last

    def fill(self, piece: Piece, into: memoryview) -> Filled:
        """Read a piece."""
        try:
            with self._file(piece.shard) as file:
                return Filled(_read(file, piece.begin, into), "read")
        except OSError as error:
            path = self._shards[piece.shard]
            raise LostPart(f"{path} cannot be read: {error.strerror or error}", piece.shard, piece.begin) from error

    def stop(self) -> None:
        """Do nothing: a read from a disk ends by itself."""

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for _, file in self._free:
                os.close(file)
            self._free.clear()

    @contextmanager
    def _file(self, shard: int) -> Iterator[int]:
        """Open a shard, or take one that is open and that nobody reads."""
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
    """Fill a buffer, and return how many bytes there were: fewer where the file ends, which readers of samples tell."""
    done = 0
    while done < len(into):
        end = done + _FIRST_BYTES if done < 2 * _FIRST_BYTES else len(into)
        count = os.preadv(file, [into[done:end]], begin + done)
        if not count:
            break
        done += count
    return done
