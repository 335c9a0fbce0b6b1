"""How is this host asked? Through text files below /proc and /sys, and the CPU affinity.

One seam, so that tests bring a tree of their own.
A file that is missing or not permitted reads as None: what a kernel does not offer is no error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from paceline.hardware.operating_system import allowed_cores

_CHUNK_BYTES = 1 << 13


class HostFiles(Protocol):
    """The files of a host. Paths are absolute, such as ``/proc/stat``."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None where it cannot be read."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder; empty where it cannot be listed."""

    def affinity(self) -> frozenset[int]:
        """Return the numbers of the CPU cores that this process may run on."""


class LocalFiles:
    """The files of the host we run on, or of a tree that stands in for one."""

    def __init__(self, root: str | Path = "/", affinity: frozenset[int] | None = None) -> None:
        self._root = str(root).rstrip("/")
        self._affinity = affinity

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None where it cannot be read."""
        try:
            descriptor = os.open(self._root + path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            return None
        try:
            return _read_whole(descriptor).decode("utf-8", "replace")
        except OSError:  # a process that ends while its file is read
            return None
        finally:
            os.close(descriptor)

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder; empty where it cannot be listed."""
        try:
            return os.listdir(self._root + folder)
        except OSError:
            return ()

    def affinity(self) -> frozenset[int]:
        """Return the numbers of the CPU cores that this process may run on."""
        return allowed_cores() if self._affinity is None else self._affinity


def _read_whole(descriptor: int) -> bytes:
    chunk = os.read(descriptor, _CHUNK_BYTES)
    chunks = [chunk]
    while chunk:  # /proc hands out a page at a time: only an empty read is the end
        chunk = os.read(descriptor, _CHUNK_BYTES)
        chunks.append(chunk)
    return b"".join(chunks)
