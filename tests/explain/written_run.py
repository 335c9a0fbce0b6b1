"""Run folders written row by row, for tests that need to know what is in them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.record import layout

NAN = math.nan
STARTED_UNIX_S = 1_800_000_000.0


def step(
    index: int, wall_s: float, *, loss: float = 1.0, flags: int = 0, samples: float = 32.0, **phases: float
) -> bytes:
    """One row; what the phases leave of the wall time is forward."""
    slots = dict.fromkeys(layout.SLOTS, 0.0) | phases
    slots["forward"] = wall_s - sum(phases.values())
    end_ns = int((index + 1) * wall_s * 1e9)
    head = (index, flags | layout.FLAG_LOSS, 1, 0, 1, end_ns, wall_s)
    tail = (NAN, NAN, NAN, samples, loss, NAN)
    return layout.STEP.pack(*head, *(slots[name] for name in layout.SLOTS), *tail)


def write_rank(folder: Path, rows: Sequence[bytes], rank: int = 0, world: int = 1, **meta: object) -> None:
    """One training process that wrote these rows and ended in peace."""
    place = folder / layout.RANKS_DIR / f"box-{100 + rank}"
    place.mkdir(parents=True)
    told = {
        "schema": layout.SCHEMA_VERSION, "host": "box", "pid": 100 + rank, "rank": rank, "world": world,
        "distributed": world > 1, "started_unix_s": STARTED_UNIX_S, "device": "cpu", "torch": "2.13.0", "threads": 2,
    }  # fmt: skip
    (place / layout.META_FILE).write_text(json.dumps(told | meta))
    (place / layout.STEPS_FILE).write_bytes(b"".join(rows))
    (place / layout.NOTES_FILE).write_text(json.dumps({"kind": "end"}) + "\n")


def write_launch(
    folder: Path, *, command: Sequence[str] = ("python", "train.py"), ended: bool = True, **end: object
) -> None:
    """The command of a run and, unless it is cut off, how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    launch = {
        "schema": layout.SCHEMA_VERSION, "host": "box", "pid": 99, "argv": ["paceline", "run", *command[1:]],
        "command": list(command), "started_unix_s": STARTED_UNIX_S, "started_ns": 0,
    }  # fmt: skip
    (folder / "launch-box-99.json").write_text(json.dumps(launch))
    if ended:
        (folder / "end-box-99.json").write_text(json.dumps({"exit_code": 0, "wall_s": 10.0} | end))


def write_run(folder: Path, rows: Sequence[bytes], **meta: object) -> Path:
    """A run of one rank that finished."""
    write_launch(folder)
    write_rank(folder, rows, **meta)
    return folder


def steady_rows(
    walls: Sequence[float], phases: Mapping[str, Sequence[float]] | None = None, **rest: float
) -> list[bytes]:
    """Rows with these wall times and, for some phases, these seconds."""
    given = phases or {}
    return [
        step(i, wall, **{name: values[i] for name, values in given.items()}, **rest) for i, wall in enumerate(walls)
    ]
