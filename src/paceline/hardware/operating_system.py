"""Checks of the operating system for each command, and access to the text files below /proc and /sys.

All code reads these files through `HostFiles`, so that tests can provide their own tree. A missing or forbidden file
reads as None: a feature that the kernel does not offer is no error.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from paceline.core.errors import EnvironmentFault

Need = Literal["posix", "linux"]
_ANYWHERE = "paceline report, compare, trace, explain and plan --gpus with numbers (such as --params 8b) work here"
_CHUNK_BYTES = 1 << 13


def check_system(what: str, need: Need) -> None:
    """Check that the operating system supports a command.

    Args:
        what: The command, such as ``paceline run``.
        need: ``posix``: signals that can be blocked and forwarded, as on Linux and macOS. ``linux``: also ``/proc``,
            which lists the processes of a program with their environment.

    Raises:
        EnvironmentFault: The system does not support the command.
    """
    if not hasattr(signal, "pthread_sigmask"):
        raise EnvironmentFault(f"{what} does not work on Windows, only on Linux and macOS: use WSL 2; {_ANYWHERE}")
    if need == "linux" and not lists_processes():
        raise EnvironmentFault(
            f"{what} needs Linux, because it finds the processes of a program in /proc, which is missing here; "
            f"paceline run without --layout works; {_ANYWHERE}"
        )


def lists_processes() -> bool:
    """Return whether ``/proc`` lists the processes of this system."""
    try:
        return str(os.getpid()) in os.listdir("/proc")
    except OSError:
        return False


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the CPU cores on which this process may run; all cores on a system without CPU affinity."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


# ---------------------------------------------------------------------------------------------------- files of the host


class HostFiles(Protocol):
    """The files of a host. Paths are absolute, such as ``/proc/stat``."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it cannot be read."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder; empty if the folder cannot be listed."""

    def affinity(self) -> frozenset[int]:
        """Return the numbers of the CPU cores on which this process may run."""


class LocalFiles:
    """The files of this host, or of a folder tree that replaces them in tests."""

    def __init__(self, root: str | Path = "/", affinity: frozenset[int] | None = None) -> None:
        self._root = str(root).rstrip("/")
        self._affinity = affinity

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it cannot be read."""
        try:
            descriptor = os.open(self._root + path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            return None
        try:
            return _read_whole(descriptor).decode("utf-8", "replace")
        except OSError:  # the process ended while its file was read
            return None
        finally:
            os.close(descriptor)

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder; empty if the folder cannot be listed."""
        try:
            return os.listdir(self._root + folder)
        except OSError:
            return ()

    def affinity(self) -> frozenset[int]:
        """Return the numbers of the CPU cores on which this process may run."""
        return allowed_cores() if self._affinity is None else self._affinity


def _read_whole(descriptor: int) -> bytes:
    chunk = os.read(descriptor, _CHUNK_BYTES)
    chunks = [chunk]
    while chunk:  # /proc returns a page at a time: only an empty read is the end of the file
        chunk = os.read(descriptor, _CHUNK_BYTES)
        chunks.append(chunk)
    return b"".join(chunks)
