"""What an interrupted conversion leaves behind, and who may go on with it.

Beside each finished shard lies a note of its size and checksums, written when the shard was whole. A shard is kept if
its bytes are those of the note. One process converts into a folder at a time, and its workers end with it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, parent_process
from pathlib import Path

import msgspec

from paceline.core.errors import UsageError
from paceline.core.files import replace_bytes
from paceline.data.index import DamagedData
from paceline.data.model import Shard
from paceline.data.shards import crc32_of

_PARTS, _PART_BYTES = 64, 4096  # of a large file, by which a change is noticed
LOCK_FILE = ".converting.lock"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that was finished."""

    shard: Shard
    skipped: Sequence[str]  # samples that could not be read, with the reason


def write_note(folder: Path, note: Note) -> None:
    """Write the note of a shard that is in its place."""
    path = _note_of(folder / note.shard.file)
    replace_bytes(path, msgspec.json.encode(note))


def finished(tar: Path) -> Note | None:
    """Return the note of a shard whose bytes are those that were written; None if there is none.

    Args:
        tar: Where the shard would be.
    """
    try:
        note = msgspec.json.decode(_note_of(tar).read_bytes(), type=Note)
        index = tar.with_name(note.shard.index)
        for path, size, crc32 in (
            (tar, note.shard.bytes, note.shard.crc32),
            (index, note.shard.index_bytes, note.shard.index_crc32),
        ):
            if path.stat().st_size != size or crc32_of(path) != crc32:
                return None
    except (OSError, DamagedData, msgspec.DecodeError):
        return None
    return note


def sampled_content(path: Path) -> bytes:
    """Return a digest of parts of a file: it may change and keep its size."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        for part in range(_PARTS):
            file.seek(max(0, size - _PART_BYTES) * part // (_PARTS - 1))
            digest.update(file.read(_PART_BYTES))
    return digest.digest()


def clear(folder: Path) -> None:
    """Remove what only a resumed conversion needs."""
    for pattern in (".*.part", ".shard-*.made.json"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder that is converted into; a process that is killed lets go of it.

    Raises:
        UsageError: Another process converts into it.
    """
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # not a POSIX system
        yield
        return
    path = folder / LOCK_FILE
    with path.open("wb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process converts into {folder} now; wait for it, or name another folder"
            ) from None
        yield
        path.unlink(missing_ok=True)


def end_with_parent() -> None:
    """Have this process, a worker of a conversion, end as soon as its parent is gone, however that ended."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="paceline-parent", daemon=True).start()


def _note_of(tar: Path) -> Path:
    return tar.with_name(f".{tar.name}.made.json")
