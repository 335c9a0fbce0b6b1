"""A cache of what was fetched: pieces of shards on the local disk, shared by all ranks and jobs of the machine.

    <cache>/held                     bytes of all pieces, under a lock
    <cache>/<data set>/lock          who fetches a piece locks its byte in it
    <cache>/<data set>/<shard>/<piece>

A piece is a file of its bytes, then a mark, their CRC-32 and their number. It is made beside its place and moved there:
it is whole, or not there. Locks end with the process that has them. When there are too many bytes, pieces that were
not read for longest go; who reads one has it open, and reads it to its end.
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

_END = struct.Struct("<4sIQ")  # behind the bytes: a mark, CRC-32, length
_MARK = b"PLC1"
_LOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits
_HELD = struct.Struct("<q")
_EVICTED = 0.9  # of the budget: what is left once pieces were taken away
_PAUSE_S = 60.0  # without writing, after a disk was full
_LOCKED_S = 5.0  # that the number of bytes may be locked, at most
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.2  # between looks whether a lock is free


class Cache:
    """The pieces of one data set; the budget is of all data sets in the folder."""

    def __init__(self, folder: Path, dataset: str, most_bytes: int | None) -> None:
        """Open it.

        Args:
            folder: Of all data sets.
            dataset: A name that no other has.
            most_bytes: Of all of them; None: half of what the disk has for it.

        Raises:
            EnvironmentFault: It cannot be made.
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
        """Bytes that all pieces may have."""
        return self._most

    def read(self, name: str, into: memoryview) -> bool:
        """Read a piece; a damaged one is taken away.

        Args:
            name: Of the piece.
            into: As long as it is.

        Returns:
            Whether it was there.
        """
        path = self._own / name
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            whole = _read_whole(file, into)
            with suppress(OSError):
                os.utime(file)  # it was read now
        except OSError:
            whole = False
        finally:
            os.close(file)
        if not whole:
            path.unlink(missing_ok=True)
        return whole

    def drop(self, name: str) -> None:
        """Take a piece away."""
        with suppress(OSError):
            (self._own / name).unlink()

    def keep(self, name: str, data: bytes | bytearray | memoryview) -> bool:
        """Write a piece, unless there is no room for it: then training goes on without, and is told so once."""
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
        """Wait until nobody else on this machine fetches the same.

        Args:
            number: Of what is fetched, different for each piece.
            stop: Ends the wait.
            longest_s: To wait; then it is fetched twice.
        """
        try:
            file = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            yield  # no disk, no lock: nothing is kept either
            return
        try:
            _wait_for(file, number, stop, longest_s)
            yield
        finally:
            os.close(file)  # which unlocks

    # -- inside --------------------------------------------------------------------------------------------

    def _write(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            with made.open("wb", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # by which `_sizes` knows that somebody writes it
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
        """Count bytes as held; too many, and the oldest go."""
        with self._counted() as (file, held):
            held += size
            if held > self._most:
                held = self._evict(int(_EVICTED * self._most))
            os.pwrite(file, _HELD.pack(held), 0)

    def _make_room(self) -> bool:
        """Take a quarter of what is held away, for a disk that is full; say whether there was something."""
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
        """Give the file with the number of bytes held, locked, and that number.

        Raises:
            OSError: It cannot be had.
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
        """Take pieces away, those not read for longest first, and return how many bytes are left."""
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
        """Yield when each piece was read last, its size and its path; what killed processes left is taken away."""
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
    """Read a piece, and say whether it is as it was written."""
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
    """Return what is left of views once so many bytes are done."""
    left = []
    for view in views:
        skipped = min(done, len(view))
        done -= skipped
        if skipped < len(view):
            left.append(view[skipped:])
    return left


def _wait_for(file: int, place: int, stop: Stop, longest_s: float) -> None:
    """Lock a byte of a file until it is closed; go on without where it takes too long, or there are no locks."""
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
    """Take a file away that nobody writes any more."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(file)
