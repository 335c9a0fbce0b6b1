"""`paceline tune` on emulated devices: whole searches, whose figures mean nothing, and which must do no harm."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A search.

    Attributes:
        program: File name and arguments.
        options: Of ``paceline tune``.
        may_fail: Words of reasons for which a trial may fail here.
    """

    program: tuple[str, ...]
    options: tuple[str, ...]
    may_fail: tuple[str, ...] = ("had no effect", "could not check", "too short")


TUNED = {
    "tune: semantic": Tuned(program=("tuned.py",), options=("--allow", "semantic", "--budget", "150s")),
    "tune: memory": Tuned(
        program=("tuned.py",), options=("--allow", "numeric", "--goal", "memory", "--budget", "150s")
    ),
}


def tune_faults(emulator: Any, tuned: Tuned) -> list[str]:
    """Run a search; return what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        program = [str(PROGRAMS / tuned.program[0]), *tuned.program[1:]]
        command = ["python", "-m", "paceline", "tune", *tuned.options, "--json", "tune.json", *program]
        found = emulator.run(command, Path(folder), {})
        file = Path(folder) / "tune.json"
        told = json.loads(file.read_text()) if file.exists() else {"trials": []}
    faults = [f"left behind: {one}" for one in found.left]
    if found.code:
        faults.append(f"exit code {found.code}: {' | '.join(found.errors.strip().splitlines()[-3:])}")
    for trial in told["trials"]:
        why = str(trial.get("reason"))
        if trial["status"] == "failed" and not any(words in why for words in tuned.may_fail):
            faults.append(f"the trial of {trial['remedy']} failed: {why[:300]}")
    if not any(trial["status"] != "skipped" for trial in told["trials"]):
        faults.append("nothing was tried")
    return faults
