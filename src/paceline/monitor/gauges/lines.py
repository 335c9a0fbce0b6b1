"""A file of JSON lines. Each line is one write to a file opened for appending, under a lock.

The lock (flock) ensures that a file has one writer: of several sidecars on a host, one writes and the others wait. On a
filesystem without locks, the file is written without a lock. If an earlier writer left an incomplete line, a newline is
written first, so that only this line is lost.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class FileInUse(OSError):
    """Another process writes to this file."""


class LineFile:
    """A file of JSON lines, opened for appending."""

    def __init__(self, path: Path) -> None:
        """Open the file; create it and its folder if they are missing.

        Raises:
            FileInUse: Another process writes to the file.
            OSError: The file cannot be written (read-only, no permission, disk full).
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
        """Write one record as a line.

        Raises:
            OSError: The line could not be written completely.
        """
        self._write(json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file and release the lock. A second call has no effect."""
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
