"""How does a line of JSON reach the disk whole? One write to a file opened for appending, under a lock of its own.

The lock (flock) keeps the rule that a file has one writer: of several sidecars on a host one writes, the others
wait for their turn. Where the filesystem has no locks, writing goes on without. A line that an earlier writer left
torn is closed first, so that it spoils nothing but itself.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class FileInUse(OSError):
    """Another process writes this file."""


class LineFile:
    """A file of JSON lines, opened for appending."""

    def __init__(self, path: Path) -> None:
        """Open the file, and its folder with it.

        Raises:
            FileInUse: another process writes it.
            OSError: it cannot be written (read-only, no permission, disk full).
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._descriptor, path)
            if _is_torn(self._descriptor):
                self._write(b"\n")
        except OSError:
            self.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            OSError: it could not be written whole.
        """
        self._write(json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file and give the lock back. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, line: bytes) -> None:
        if os.write(self._descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileInUse(errno.EAGAIN, "another sampler writes this file", str(path)) from None
    except OSError:
        pass  # a filesystem without locks


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
