"""Files that are written completely or not at all, also if the power fails: synced to the disk, then renamed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from paceline.core.files import replacing

TEMPORARY_FILES = ".*.part"  # pattern


def write_durably(path: Path, data: bytes) -> None:
    """Write a file, replacing the one that is there.

    Raises:
        OSError: It cannot be written; the earlier file stays as it was.
    """
    with replacing(path) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, so that they outlive a power failure."""
    with suppress(OSError):  # not every file system and operating system can
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
