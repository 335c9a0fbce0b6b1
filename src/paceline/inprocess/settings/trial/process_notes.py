"""Notes that a process of a trial writes at its end: one JSON file per process and kind, in a folder of the run.

The notes are written when the controller ends the trial, or at the program's own end. Forked children and processes
without notes write no file: a launcher such as torchrun imports torch too, but is not a rank.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from typing import Any

Notes = Callable[[], dict[str, Any] | None]  # None: nothing was recorded

_waiting: list[tuple[int, str, Notes]] = []


def at_end(folder: str, notes: Notes) -> None:
    """Register a function whose result is written to a folder of the run when the process ends."""
    if not _waiting:
        atexit.register(write)
    _waiting.append((os.getpid(), folder, notes))


def write() -> None:
    """Write all notes of this process, once."""
    mine = [(folder, notes) for pid, folder, notes in _waiting if pid == os.getpid()]
    _waiting.clear()
    for folder, notes in mine:
        found = notes()
        if found is None:
            continue
        place = os.path.join(os.environ["PACELINE_WATCH_DIR"], folder)
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, f"{os.getpid()}.json"), "w", encoding="utf-8") as file:
            json.dump(found, file)
