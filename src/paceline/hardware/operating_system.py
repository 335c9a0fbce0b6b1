"""The operating system: what a command needs of it, and its text files below /proc and /sys.

`HostFiles` is the one way to read these files, so that tests bring a tree of their own. A file that is missing or not
permitted reads as None: what a kernel does not offer is no error.
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
    """Make sure that this system has what a verb needs.

    Args:
        what: What was asked for, such as ``paceline run``.
        need: ``posix``: signals that can be blocked and passed on, as Linux and macOS have them. ``linux``: also
            ``/proc``, which lists the processes of a program with their environment.

    Raises:
        EnvironmentFault: It has not.
    """
    if not hasattr(signal, "pthread_sigmask"):
        raise EnvironmentFault(f"{what} does not work on Windows, only on Linux and macOS: use WSL 2; {_ANYWHERE}")
    if need == "linux" and not lists_processes():
        raise EnvironmentFault(
            f"{what} needs Linux, because it finds the processes of a program in /proc, which is missing here; "
            f"paceline run without --layout works; {_ANYWHERE}"
        )


def lists_processes() -> bool:
    """Say whether ``/proc`` lists the processes of this system."""
    try:
        return str(os.getpid()) in os.listdir("/proc")
    except OSError:
        return False


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the CPU cores that this process may run on; all cores where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


# ---------------------------------------------------------------------------------------------------- files of the host


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
