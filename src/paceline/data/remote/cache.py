"""A cache of fetched pieces of shards on the local disk, shared by all ranks and jobs of the machine.

    <cache>/held                     the number of bytes of all pieces, under a lock
    <cache>/<dataset>/lock           a process that fetches a piece locks one byte of this file
    <cache>/<dataset>/<shard>/<piece>

Each piece is a file: the bytes, a mark, the CRC-32 of the bytes, and their number. The file is written under a
temporary name and renamed, so it is complete or absent. A lock ends with its process. If there are too many bytes, the
least recently read pieces are deleted; a process that has such a piece open reads it to the end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isal import isal_zlib

from paceline.core import units
from paceline.core.errors import EnvironmentFault
from paceline.data.format.folders import Stop

_END = struct.Struct("<4sIQ")  # after the bytes: a mark, CRC-32, length
_MARK = b"PLC1"
_LOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits
_HELD = struct.Struct("<q")
_EVICTED = 0.9  # relative to the budget: the bytes that an eviction leaves
_PAUSE_S = 60.0  # in which nothing is written after the disk was full
_LOCKED_S = 5.0  # the longest wait for the lock of `held`
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.2  # pauses between attempts to lock


class Cache:
    """The cached pieces of shards of one dataset; the budget in bytes is for all datasets in the folder together."""

    def __init__(self, folder: Path, dataset: str, most_bytes: int | None) -> None:
        """Open a cache, and create its folder.

        Args:
            folder: The folder for all datasets.
            dataset: A unique name of the dataset.
            most_bytes: The budget of all datasets; None for half of the bytes that are free or already cached.

        Raises:
            EnvironmentFault: The folder cannot be used.
        """
        self._all, self._own = folder, folder / dataset
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            held = self._held()
            self._most = most_bytes if most_bytes is not None else (shutil.disk_usage(folder).free + held) // 2
        except OSError as error:
            raise EnvironmentFault(
                f"cannot cache blocks in {folder}: {error.strerror or error}; give another folder "
                "(cache=FOLDER) or none (cache=False)"
            ) from error
        self._paused_until = 0.0
        self._warned = False
        self._lock = threading.Lock()

    @property
    def most_bytes(self) -> int:
        """The budget of all datasets in the folder, in bytes."""
        return self._most

    def read(self, name: str, into: memoryview) -> bool:
        """Read a piece from the disk; a damaged piece is deleted.

        Args:
            name: The name of the piece.
            into: The buffer, exactly as long as the piece.

        Returns:
            Whether the piece was cached and intact.
        """
        path = self._own / name
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            whole = _read_whole(file, into)
            with suppress(OSError):
                os.utime(file)  # the time of the last read
        except OSError:
            whole = False
        finally:
            os.close(file)
        if not whole:
            path.unlink(missing_ok=True)
        return whole

    def drop(self, name: str) -> None:
        """Delete a piece, if it is cached."""
        with suppress(OSError):
            (self._own / name).unlink()

    def keep(self, name: str, data: bytes | bytearray | memoryview) -> bool:
        """Write a piece, and return whether it was written. The first failed write gives a warning."""
        size = len(data) + _END.size
        if size > self._most or time.monotonic() < self._paused_until:
            return False
        for last in (False, True):
            try:
                self._write(self._own / name, data)
                self._count(size)
                return True
            except OSError as error:
                if last or not self._make_room():
                    self._pause(error)
                    return False
        return False

    @contextmanager
    def turn(self, number: int, stop: Stop, longest_s: float) -> Iterator[None]:
        """Return a context that holds the lock of a piece, so that only one process of this machine fetches the piece.

        Args:
            number: A number that is different for each piece: the byte to lock.
            stop: Ends the wait.
            longest_s: The longest wait in seconds. After it, the piece may be fetched twice.
        """
        try:
            file = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            yield  # without a lock, as nothing can be cached either
            return
        try:
            _wait_for(file, number, stop, longest_s)
            yield
        finally:
            os.close(file)  # releases the lock

    # -- private -------------------------------------------------------------------------------------------

    def _write(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            with made.open("wb", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # so that `_take_away_if_left` leaves the file
                end = _END.pack(_MARK, isal_zlib.crc32(data), len(data))
                left = [memoryview(data), memoryview(end)]
                while left:
                    done = os.writev(file.fileno(), left)
                    left = _after(left, done)
                os.replace(made, path)
        except BaseException:
            made.unlink(missing_ok=True)
            raise

    def _count(self, size: int) -> None:
        """Add to the number of cached bytes, and delete old pieces if the budget is exceeded."""
        with self._counted() as (file, held):
            held += size
            if held > self._most:
                held = self._evict(int(_EVICTED * self._most))
            os.pwrite(file, _HELD.pack(held), 0)

    def _make_room(self) -> bool:
        """Delete a quarter of the cached bytes because the disk is full, and return whether any were deleted."""
        with suppress(OSError), self._counted() as (file, held):
            left = self._evict(held * 3 // 4)
            os.pwrite(file, _HELD.pack(left), 0)
            return left < held
        return False

    def _held(self) -> int:
        with self._counted() as (file, held):
            os.pwrite(file, _HELD.pack(held), 0)
            return held

    @contextmanager
    def _counted(self) -> Iterator[tuple[int, int]]:
        """Return a context with the locked file `held` and the number of cached bytes in it.

        Raises:
            OSError: The file cannot be opened or read.
        """
        file = os.open(self._all / "held", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _wait_for(file, 0, Stop(), _LOCKED_S)
            told = os.pread(file, _HELD.size, 0)
            held = _HELD.unpack(told)[0] if len(told) == _HELD.size else sum(size for _, size, _ in self._pieces())
            yield file, held
        finally:
            os.close(file)

    def _evict(self, down_to: int) -> int:
        """Delete the least recently read pieces down to a number of bytes, and return the bytes that are left."""
        found = sorted(self._pieces())
        left = sum(size for _, size, _ in found)
        for _, size, path in found:
            if left <= down_to:
                break
            with suppress(OSError):
                os.unlink(path)
            left -= size
        return left

    def _pieces(self) -> Iterator[tuple[int, int, str]]:
        """Yield the last read time (ns), size and path of each piece; delete temporary files of ended processes."""
        for folder, _, names in os.walk(self._all):
            for name in names:
                path = os.path.join(folder, name)
                if name.endswith(".part"):
                    _take_away_if_left(path)
                elif name not in ("held", "lock"):
                    with suppress(OSError):
                        told = os.stat(path)
                        yield told.st_mtime_ns, told.st_size, path

    def _pause(self, error: OSError) -> None:
        with self._lock:
            self._paused_until = time.monotonic() + _PAUSE_S
            warned, self._warned = self._warned, True
        if not warned:
            warnings.warn(
                f"cannot cache blocks in {self._all}: {error.strerror or error}; training continues and fetches them "
                f"again in the next epoch. Free some space, or give cache=FOLDER or cache_bytes=N (now "
                f"{units.size(self._most)})",
                RuntimeWarning,
                stacklevel=2,
            )


def _read_whole(file: int, into: memoryview) -> bool:
    """Read a piece, and return whether its length, mark and checksum are right."""
    if os.fstat(file).st_size != len(into) + _END.size:
        return False
    end, done = bytearray(_END.size), 0
    views = [into, memoryview(end)]
    while views:
        count = os.preadv(file, views, done)
        if not count:
            return False
        done += count
        views = _after(views, count)
    return bytes(end) == _END.pack(_MARK, isal_zlib.crc32(into), len(into))


def _after(views: list[memoryview], done: int) -> list[memoryview]:
    """Return the views without their first `done` bytes."""
    left = []
    for view in views:
        skipped = min(done, len(view))
        done -= skipped
        if skipped < len(view):
            left.append(view[skipped:])
    return left


def _wait_for(file: int, place: int, stop: Stop, longest_s: float) -> None:
    """Lock a byte of a file until the file is closed; return without the lock after a time limit or an error."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    until, pause = time.monotonic() + longest_s, _FIRST_LOOK_S
    while True:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, asked)
            return
        except (BlockingIOError, PermissionError):
            if time.monotonic() > until:
                return
        except OSError:
            return
        stop.wait(pause)
        pause = min(_LONGEST_LOOK_S, 2 * pause)


def _take_away_if_left(path: str) -> None:
    """Delete a temporary file, unless a process still writes it."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(file)
