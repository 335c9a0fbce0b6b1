"""The data of a run folder, in frozen classes and SI units. A quantity that was not measured is None or NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]
"""A structured array; its field names are those of `layout.STEP_FIELDS` or `layout.TICK_FIELDS`."""

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One `paceline run` command and how it ended. A run on several hosts has several launches."""

    host: str
    pid: int
    argv: Sequence[str]
    command: Sequence[str]
    started_unix_s: float
    started_ns: int
    cwd: str = ""
    recipe: str | None = None  # the argument of --recipe
    price_per_hour: float | None = None
    price_source: str = ""
    target_loss: float | None = None
    exit_code: int | None = None  # None: the program still runs, or paceline itself was killed
    signal: str | None = None  # name of the signal that killed the program
    asked_to_end: str | None = None  # name of a termination signal that Paceline forwarded to the program
    wall_s: float | None = None
    oom_kills: int | None = None  # processes that the kernel killed for lack of memory during the run


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One training process: its steps, ticks, notes and summary."""

    folder: Path
    host: str
    pid: int
    rank: int
    world: int
    meta: JsonObject
    steps: Rows  # optimizer steps in order, without FLAG_TAIL rows
    tail: Rows  # zero or one row: the time after the last step
    ticks: Rows
    notes: Sequence[JsonObject] = ()
    summary: JsonObject = field(default_factory=dict)
    recorded: int | None = None  # number of recorded steps if `steps` has only stretches of them, else None

    @property
    def count(self) -> int:
        """The number of steps that the process made."""
        return len(self.steps) if self.recorded is None else self.recorded

    @property
    def device(self) -> str:
        """The type of the device on which the process trained: ``cpu`` or ``cuda``."""
        return str(self.meta.get("device", "cpu"))

    def noted(self, kind: str) -> list[JsonObject]:
        """Return the notes of one kind, in the order in which they were written."""
        return [note for note in self.notes if note.get("kind") == kind]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One loader worker process, with its cumulative counters at several times."""

    host: str
    pid: int
    parent_pid: int
    worker_id: int
    num_workers: int
    base_seed: int
    meta: JsonObject
    ticks: Sequence[JsonObject]

    @property
    def last(self) -> JsonObject:
        """Return the latest counters; empty if none were written."""
        return self.ticks[-1] if self.ticks else {}


@dataclass(frozen=True, kw_only=True)
class Run:
    """The current state of a run on disk."""

    run_id: str
    folder: Path
    launches: Sequence[Launch]
    ranks: Sequence[Rank]  # by rank number; for a restarted rank, the attempt that trained longest
    earlier: Sequence[Rank]  # other attempts of ranks that were restarted
    workers: Sequence[Worker]
    gauges: Mapping[str, Sequence[JsonObject]]  # by host, in time order
    beside: Sequence[Rank] = ()  # training processes that are not ranks of the analysed job
    stepless: Sequence[Rank] = ()  # processes that started to train but made no step
    problems: Sequence[str] = ()  # sentences about files that could not be read

    @property
    def finished(self) -> bool:
        """Return whether every command of the run has ended."""
        return bool(self.launches) and all(x.exit_code is not None for x in self.launches)


def column(rows: Rows, name: str) -> NDArray[np.float64]:
    """Return one field of the rows as an array of 64-bit floats."""
    return rows[name].astype(np.float64)
