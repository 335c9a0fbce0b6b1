"""Record which settings took effect in this process and which did not: one line per setting, next to the record."""

from __future__ import annotations

import json
import os

FOLDER = "held"  # in the run's folder
_told: set[str] = set()


def took(key: str, what: str) -> None:
    """Record that a setting is in effect, and what the setting changes in this program."""
    _tell({"key": key, "held": True, "what": what})


def refused(key: str, why: str) -> None:
    """Record that a setting was not applied, and why."""
    _tell({"key": key, "held": False, "what": why})


def gave_up(key: str, why: str) -> None:
    """Record that a setting is no longer in effect, and why."""
    _tell({"key": key, "held": False, "given_up": True, "what": why})


def _tell(entry: dict[str, object]) -> None:
    line = json.dumps(entry)
    if line in _told:
        return
    _told.add(line)
    folder = os.path.join(os.environ.get("PACELINE_WATCH_DIR", "."), FOLDER)
    try:
        os.makedirs(folder, exist_ok=True)
        handle = os.open(os.path.join(folder, f"{os.getpid()}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (line + "\n").encode())
        finally:
            os.close(handle)
    except OSError:
        _told.discard(line)
