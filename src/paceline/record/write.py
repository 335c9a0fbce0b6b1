"""Functions that create the folder of a run and write its JSON files atomically."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.errors import EnvironmentFault
from paceline.core.files import replace_bytes
from paceline.record import layout

RUNS = Path(".paceline") / "runs"


def new_run_id(stem: str) -> str:
    """Return a run id that sorts by time and contains the program's name: ``20261121-031500-train-3fa2``."""
    safe = "".join(c if c.isalnum() or c in "_." else "-" for c in stem)[:32].strip("-.") or "run"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{safe}-{secrets.token_hex(2)}"


def make_run_folder(base: Path, run_id: str) -> Path:
    """Create the folder of a run with its subfolders.

    Raises:
        EnvironmentFault: The folder cannot be written (read-only, full, no permission).
    """
    return make_folder(base, run_id, (layout.RANKS_DIR, layout.WORKERS_DIR, layout.GAUGES_DIR))


def make_folder(base: Path, name: str, parts: Sequence[str] = ("",)) -> Path:
    """Create a folder with its subfolders. In ``.paceline``, also create a ``.gitignore`` that excludes all files.

    Raises:
        EnvironmentFault: The folder cannot be written (read-only, full, no permission).
    """
    folder = base / name
    try:
        for part in parts:
            (folder / part).mkdir(parents=True, exist_ok=True)
        ignore = base.parent / ".gitignore"
        if base.parent.name == ".paceline" and not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write to {base}: {error.strerror or error}; name another folder with --dir DIR"
        ) from error
    return folder


def replace_json(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file atomically: readers see the old file or the new file."""
    replace_bytes(path, msgspec.json.encode(record))
