"""Resuming of interrupted conversions: the plan file with its lock, and the notes of finished shards.

The plan file identifies the conversion. The file exists from the start of a conversion to its very end. The converting
process holds a lock on the file, and its workers inherit the lock. Removing the plan file ends the conversion and
releases the lock in one step. So a kill at any moment leaves an incomplete folder with a plan file, or a complete
folder without it.

Each finished shard has a note with its size and checksums, written when the shard was complete. A resumed conversion
keeps a shard if its bytes match the note.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, parent_process, reduction
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import TEMPORARY_FILES, sync_folder, write_durably
from paceline.data.convert.shard_writer import crc32_of
from paceline.data.format.index import DamagedData
from paceline.data.format.model import CONTENTS_FILE, Shard

PLAN_FILE = ".converting.json"
WRITER_MARK = "Writer "  # the mark of a `paceline.data.Writer` begins with this text
WAIT_S = 5.0  # for the workers of a killed conversion to end
_LOOK_S = 0.05
_NOTES = ".*.made.json"  # a glob pattern


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The note of a finished shard."""

    shard: Shard
    skipped: Sequence[str]  # samples that could not be read, with the reason


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    fingerprint: str


def write_note(folder: Path, note: Note) -> None:
    """Write the note of a shard that is complete."""
    write_durably(note_path(folder / note.shard.file), msgspec.json.encode(note))


def note_path(shard: Path) -> Path:
    """Return the path of a shard's note."""
    return shard.with_name(f".{shard.name}.made.json")


def finished(tar: Path) -> Note | None:
    """Return the note of a finished shard, or None if there is no note or the shard's bytes do not match it.

    Args:
        tar: The path of the shard, which need not exist.
    """
    try:
        note = msgspec.json.decode(note_path(tar).read_bytes(), type=Note)
    except (OSError, DamagedData, msgspec.DecodeError):
        return None
    return note if is_as_written(tar.parent, note.shard) else None


def is_as_written(folder: Path, shard: Shard) -> bool:
    """Return whether a shard and its index have their recorded sizes and checksums."""
    try:
        return all(
            (folder / name).stat().st_size == size and crc32_of(folder / name) == crc32
            for name, size, crc32 in (
                (shard.file, shard.bytes, shard.crc32),
                (shard.index, shard.index_bytes, shard.index_crc32),
            )
        )
    except OSError:
        return False


def clear(folder: Path) -> None:
    """Delete the notes and temporary files of a conversion."""
    for pattern in (TEMPORARY_FILES, _NOTES):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def has_notes(folder: Path) -> bool:
    """Return whether an interrupted conversion has finished a shard."""
    return any(folder.glob(_NOTES))


def check_folder(folder: Path, mark: str, contents_file: str = CONTENTS_FILE) -> None:
    """Check that a folder is new, empty, or has an interrupted conversion with the same mark.

    Args:
        folder: The folder.
        mark: The identity of the conversion.
        contents_file: The file that makes the folder a dataset.

    Raises:
        UsageError: The folder has other content.
    """
    there = _fingerprint_in(folder / PLAN_FILE)
    if there:
        if there != mark and there.startswith(WRITER_MARK):
            raise UsageError(
                f"{folder} holds the files of another Writer, which still runs or was interrupted; "
                "remove it, or name another folder"
            )
        if there != mark:
            raise UsageError(
                f"{folder} holds an unfinished conversion of another source, or with other options; "
                "remove it, or name another folder"
            )
    elif (folder / contents_file).exists():
        raise UsageError(f"{folder} holds a data set; name another folder")
    elif (
        there is None
        and folder.exists()
        and not (folder.is_dir() and all(path.match(TEMPORARY_FILES) for path in folder.iterdir()))
    ):
        raise UsageError(f"{folder} exists and is not empty; name a new folder")


@contextmanager
def alone_in(folder: Path, mark: str, contents_file: str = CONTENTS_FILE) -> Iterator[int]:
    """Return a context that locks the plan file of a conversion, and removes the file at the end.

    After an error, the plan file stays if a shard was finished.

    Args:
        folder: The destination; created if it does not exist.
        mark: The identity of the conversion, from its source and options.
        contents_file: The file that makes the folder a dataset.

    Yields:
        The file descriptor that holds the lock; see `InheritedFile`.

    Raises:
        UsageError: Another process converts into the folder, or the folder holds something else.
        EnvironmentFault: The folder cannot be written to.
    """
    plan = folder / PLAN_FILE
    with _errors_of(folder):
        held = _opened(plan, mark, contents_file)
    try:
        with _errors_of(folder):
            _begin(held, plan, mark, contents_file)
        yield held
        sync_folder(folder)
        plan.unlink(missing_ok=True)
    except BaseException:
        if not has_notes(folder) and _is_at(held, plan):
            clear(folder)
            plan.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)


@contextmanager
def _errors_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {folder}: {error.strerror or error}; name another folder") from error


def _opened(plan: Path, mark: str, contents_file: str) -> int:
    """Open or create the plan file, lock it, and return its descriptor."""
    until = time.monotonic() + WAIT_S
    while True:
        check_folder(plan.parent, mark, contents_file)
        plan.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = os.open(plan, os.O_RDWR | (0 if plan.exists() else os.O_CREAT | os.O_EXCL), 0o666)
        except (FileExistsError, FileNotFoundError):
            continue  # another process has just started or ended a conversion
        if _lock(held):
            if _is_at(held, plan):
                return held
        elif time.monotonic() >= until:
            os.close(held)
            raise UsageError(f"another process converts into {plan.parent} now; wait for it, or name another folder")
        else:
            time.sleep(_LOOK_S)
        os.close(held)


def _is_at(held: int, path: Path) -> bool:
    """Return whether an open file is still the file at a path; another process can have replaced it."""
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False


def _lock(held: int) -> bool:
    """Lock an open file; return False if another process has the lock. Without support for locks, return True."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # not a POSIX system
        return True
    try:
        flock(held, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks
    return True


def _begin(held: int, plan: Path, mark: str, contents_file: str) -> None:
    """Write the mark to the plan file and delete the notes of all shards, unless the file has this mark already."""
    if _fingerprint_in(plan) == mark:
        return
    if (plan.parent / contents_file).exists():
        plan.unlink(missing_ok=True)  # another process has finished before this one created the file
    check_folder(plan.parent, mark, contents_file)
    clear(plan.parent)
    os.truncate(held, 0)
    os.write(held, msgspec.json.encode(_Plan(fingerprint=mark)))
    os.fsync(held)


def _fingerprint_in(plan: Path) -> str | None:
    """Return the mark in a plan file, "" if the file is empty or damaged, or None if there is no file."""
    try:
        return msgspec.json.decode(plan.read_bytes(), type=_Plan).fingerprint
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError:
        return ""


class InheritedFile:
    """An open file that spawned processes inherit; a lock on it lasts until the last of the processes has ended."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self.descriptor),)


def _inherited(duplicate: Any) -> InheritedFile:
    return InheritedFile(duplicate.detach())


def end_with_parent() -> None:
    """Start a thread that ends this worker process as soon as its parent process has ended."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="paceline-parent", daemon=True).start()
