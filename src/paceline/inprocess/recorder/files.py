"""File writes of the recorder: records are appended in one call, files are replaced by rename; no locks."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


class Appender:
    """An append-only file with one writer, opened at the first write."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def write(self, data: bytes) -> None:
        """Append complete records. Raises OSError if the disk is full or read-only."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def write_json(self, record: dict[str, Any]) -> None:
        """Append a record as one JSON line."""
        self.write(to_json(record) + b"\n")

    def close(self) -> None:
        """Close the file if it is open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def replace_json(path: str, record: dict[str, Any]) -> None:
    """Write a JSON file atomically: readers see the old file or the new file."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(to_json(record))
    os.replace(temporary, path)


def make_json(path: str, record: dict[str, Any]) -> bool:
    """Create a JSON file atomically; return False if a file with this name exists."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    with open(temporary, "wb") as file:
        file.write(to_json(record))
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if os.path.exists(path):
            return False
        os.replace(temporary, path)
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True


def another(name: str) -> str:
    """Return a new name for ``<host>-<pid>``, if another container uses that one: ``<host>.<random>-<pid>``."""
    head, _, pid = name.rpartition("-")
    return f"{head}.{os.urandom(4).hex()}-{pid}"


def to_json(record: dict[str, Any]) -> bytes:
    """Encode a record as compact JSON. NaN and infinities become null, objects of unknown type become text."""
    try:
        text = json.dumps(record, separators=(",", ":"), default=str, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), separators=(",", ":"), default=str, ensure_ascii=False)
    return text.encode("utf-8", "replace")  # file names may contain bytes that are not valid text


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
