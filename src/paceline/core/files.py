"""Functions that replace files atomically, and the folders in which Paceline keeps a user's files.

The folders follow the XDG Base Directory Specification: state that should outlive a program, and caches that may be
deleted.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

TEMPORARY_FILES = ".*.part"  # pattern of the files that are not complete yet
_FOLDERS = {"state": ("XDG_STATE_HOME", (".local", "state")), "cache": ("XDG_CACHE_HOME", (".cache",))}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the file at ``path`` when the block ends.

    Readers see the old file or the new file, never an incomplete file. If the block raises, the new file is deleted.

    Args:
        path: The file to replace. It need not exist; its folder must.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old file or the new file."""
    with replacing(path) as part:
        part.write_bytes(data)


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file, sync it to the disk, and then replace the earlier file by it atomically.

    After a power failure the path holds the old file or the new file.

    Raises:
        OSError: The file cannot be written; the earlier file stays as it was.
    """
    with replacing(path) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk, so that they survive a power failure."""
    with suppress(OSError):  # some file systems and operating systems cannot sync a folder
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def user_folder(kind: Literal["state", "cache"], environment: Mapping[str, str]) -> Path | None:
    """Return Paceline's folder for the current user, or None if the environment has no home folder.

    Args:
        kind: ``state``: ``$XDG_STATE_HOME/paceline``. ``cache``: ``$XDG_CACHE_HOME/paceline``.
        environment: The environment variables of the process.
    """
    variable, default = _FOLDERS[kind]
    folder = Path(environment.get(variable, ""))
    if not folder.is_absolute():  # the XDG specification says to ignore relative paths
        folder = Path(environment.get("HOME", "")).joinpath(*default)
    return folder / "paceline" if folder.is_absolute() else None


def host_file(stem: str, suffix: str, environment: Mapping[str, str]) -> Path | None:
    """Return the path of this host's state file, ``<stem>-<host><suffix>``; None if the environment has no home."""
    folder = user_folder("state", environment)
    return None if folder is None else folder / f"{stem}-{platform.node() or 'localhost'}{suffix}"
