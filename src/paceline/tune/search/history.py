"""The history of trials: a file of the user on this machine, with one line of JSON for each trial.

The file is ``$XDG_STATE_HOME/paceline/trials-<host>.jsonl``, or the same below ``~/.local/state``. The environment
variable ``PACELINE_HISTORY`` names another file, or is ``off``. A line contains no path, no command and no code.
Several commands can write at the same time, because each adds a whole line with one write. A line that is incomplete or
of an unknown version is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path

import msgspec

from paceline.core.files import host_file
from paceline.tune.search.predictions import Machine, RecordedTrial, recorded_trial
from paceline.tune.search.result import Trial

VARIABLE = "PACELINE_HISTORY"
OFF = "off"


def history_file(environment: Mapping[str, str]) -> Path | None:
    """Return the history file, or None if the history is switched off or the user has no home directory."""
    named = environment.get(VARIABLE, "")
    if named:
        return None if named.lower() == OFF else Path(named)
    return host_file("trials", ".jsonl", environment)


def read_history(path: Path) -> list[RecordedTrial]:
    """Return the trials in a file, the oldest first. The list is empty if the file cannot be read."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    return [one for line in lines if (one := _parse(line)) is not None]


def _parse(line: bytes) -> RecordedTrial | None:
    try:
        return msgspec.json.decode(line, type=RecordedTrial)
    except msgspec.DecodeError:
        return None


def append_trial(path: Path, outcome: RecordedTrial) -> None:
    """Add a trial to a file. If the last line is incomplete, end that line first.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        with suppress(OSError):  # without file locks, the worst case is an empty line
            # without the lock, a partial write of another process looks like an incomplete line; closing unlocks
            flock(file, LOCK_EX)
        end = file.seek(0, 2)
        file.seek(max(0, end - 1))
        torn = end > 0 and file.read(1) != b"\n"
        file.write(b"\n" * torn + msgspec.json.encode(outcome) + b"\n")


class TrialHistory:
    """The trials on this machine: those in the history file, and those of this search."""

    def __init__(self, path: Path | None, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        self.seen = read_history(path) if path is not None else []

    def add(self, trial: Trial, machine: Machine) -> None:
        """Add a measured trial to the history. If the file cannot be written, report this once and write no more."""
        outcome = recorded_trial(trial, machine, datetime.now(UTC).isoformat(timespec="seconds"))
        if self._path is None or outcome is None:
            return
        self.seen.append(outcome)
        try:
            append_trial(self._path, outcome)
        except OSError as error:
            why = f"cannot write {self._path}: {error.strerror or error}"
            self._report(
                f"the results of trials cannot be stored: {why}; set the environment variable PACELINE_HISTORY to "
                f"another file, or to off"
            )
            self._path = None
