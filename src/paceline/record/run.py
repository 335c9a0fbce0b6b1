"""The data of a run folder, frozen and in SI units. What was not measured is None or NaN."""

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
    """One `paceline run` command and how it ended (on several hosts a run has several)."""

    host: str
    pid: int
    argv: Sequence[str]
    command: Sequence[str]
    started_unix_s: float
    started_ns: int
    cwd: str = ""
    recipe: str | None = None  # the file of --recipe, as it was given
    price_per_hour: float | None = None
    price_source: str = ""
    target_loss: float | None = None
    exit_code: int | None = None  # None: the program still runs, or paceline itself was killed
    signal: str | None = None  # name of the signal that ended the program
    asked_to_end: str | None = None  # name of a signal to end that was passed on to the program
    wall_s: float | None = None
    oom_kills: int | None = None  # kills by the kernel for memory, seen during the run


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One training process: its steps, its ticks, and what was noted beside them."""

    folder: Path
    host: str
    pid: int
    rank: int
    world: int
    meta: JsonObject
    steps: Rows  # applied optimizer updates, in order; FLAG_TAIL rows are taken out
    tail: Rows  # zero or one row: what came after the last step
    ticks: Rows
    notes: Sequence[JsonObject] = ()
    summary: JsonObject = field(default_factory=dict)
    recorded: int | None = None  # steps in the record, where `steps` holds only stretches of them

    @property
    def count(self) -> int:
        """How many steps the process made."""
        return len(self.steps) if self.recorded is None else self.recorded

    @property
    def device(self) -> str:
        """The kind of device that the phases speak of: ``cpu`` or ``cuda``."""
        return str(self.meta.get("device", "cpu"))

    def noted(self, kind: str) -> list[JsonObject]:
        """Return the notes of one kind, in the order written."""
        return [note for note in self.notes if note.get("kind") == kind]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One loader worker process: cumulative counters at its ticks."""

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
        """Return the counters as they stood last; empty when nothing was written."""
        return self.ticks[-1] if self.ticks else {}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as it stands on disk now."""

    run_id: str
    folder: Path
    launches: Sequence[Launch]
    ranks: Sequence[Rank]  # by rank; of restarted ranks the attempt that trained longest
    earlier: Sequence[Rank]  # other attempts of ranks that were restarted
    workers: Sequence[Worker]
    gauges: Mapping[str, Sequence[JsonObject]]  # by host, in order of time
    beside: Sequence[Rank] = ()  # processes that trained and are no ranks of the job that is explained
    stepless: Sequence[Rank] = ()  # processes that began to train and made no step
    problems: Sequence[str] = ()  # what could not be read, in words

    @property
    def finished(self) -> bool:
        """Say whether every command that took part has ended."""
        return bool(self.launches) and all(x.exit_code is not None for x in self.launches)


def column(rows: Rows, name: str) -> NDArray[np.float64]:
    """Return one field of the rows as 64-bit floats."""
    return rows[name].astype(np.float64)
