"""What does a process of a trial tell when it ends? One JSON file for each that took notes, in a folder of the run.

Written when the conductor ends the trial, or when the program comes to its own end; not by forked children, nor by who
has nothing to tell: a launcher such as torchrun imports torch too, and is no rank.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from typing import Any

Notes = Callable[[], dict[str, Any] | None]  # None: nothing was seen

_waiting: list[tuple[int, str, Notes]] = []


def at_end(folder: str, notes: Notes) -> None:
    """Have what a function returns at the end written to a folder of the run."""
    if not _waiting:
        atexit.register(write)
    _waiting.append((os.getpid(), folder, notes))


def write() -> None:
    """Write all that this process has to tell, once."""
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
