"""How long does a step of a program take, whoever runs it? By a clock beside it, on the lines that it prints.

A program prints ``step 25 loss 0.693...`` now and then. Nothing of Paceline measures here: the same clock times a
program that runs bare, under ``paceline run --recipe``, and in another tool's hands.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.recipe import recipe_toml

LIMIT_S = 150.0  # of one run: what takes longer is no candidate
LINE = re.compile(r"step (\d+) loss (\S+)")
_NO_EFFECT = "had no effect"


class RunFailed(Exception):
    """A run that says nothing about speed; the message says why."""


@dataclass(frozen=True)
class Clocked:
    """A run of a program: when it printed which step, and the losses, digit by digit."""

    at_s: Mapping[int, float]  # step -> seconds since the start
    losses: Mapping[int, str]
    wall_s: float  # of the whole command

    def step_s(self, warmup: int) -> float:
        """Return the seconds of a step after the warm-up, on average.

        Raises:
            RunFailed: Too few lines came.
        """
        last = max(self.at_s, default=0)
        if warmup not in self.at_s or last <= warmup:
            raise RunFailed(f"no line of step {warmup} and of a later one; the last is of step {last}")
        return (self.at_s[last] - self.at_s[warmup]) / (last - warmup)


def bare(*program: object) -> list[str]:
    """Return the command of a program with its arguments, as it is."""
    return [sys.executable, *map(str, program)]


def under(recipe: Mapping[str, Any], folder: Path, *program: object) -> list[str]:
    """Return the command of a program under a recipe, which is written to a folder; the empty one is the baseline."""
    file = folder / "applied.toml"
    file.write_text(recipe_toml(recipe))
    options = ["run", "-q", "--no-profile", "--recipe", str(file)]
    return [sys.executable, "-m", "paceline", *options, *map(str, program)]


def clocked(command: Sequence[str], folder: Path, limit_s: float = LIMIT_S) -> Clocked:
    """Run a command in a folder to its end, with a clock on its lines.

    Raises:
        RunFailed: It failed, took too long, or a setting of its recipe did not take hold.
    """
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        late = threading.Timer(limit_s, ended, (process,))
        late.start()
        try:
            marks = [(time.monotonic() - begun, found) for line in process.stdout if (found := LINE.match(line))]
            code = process.wait()
        finally:
            late.cancel()
            ended(process)
        if time.monotonic() - begun >= limit_s:
            raise RunFailed(f"it took longer than {limit_s:.0f} s")
        errors.seek(0)
        check(code, errors.read())
    return Clocked(
        at_s={int(found[1]): at for at, found in marks},
        losses={int(found[1]): found[2] for _, found in marks},
        wall_s=time.monotonic() - begun,
    )


def check(code: int, errors: str) -> None:
    """Make sure that a run came to its end with its settings in force.

    Raises:
        RunFailed: It did not.
    """
    said = [line for line in errors.splitlines() if line.strip()]
    if code:
        raise RunFailed(f"exit code {code}: {said[-1].strip() if said else 'no message'}")
    for line in said:
        if _NO_EFFECT in line:
            raise RunFailed(line.removeprefix("paceline: "))


def ended(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a command, loader workers too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a run: nobody's settings of Paceline's."""
    return {**{key: value for key, value in os.environ.items() if not key.startswith("PACELINE_")}, **more}


def called(command: Sequence[str], folder: Path, limit_s: float) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run any command in a folder; return how it ended, and its wall seconds.

    Raises:
        RunFailed: It took too long.
    """
    begun = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(PACELINE_HISTORY="off"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"it took longer than {limit_s:.0f} s") from error
    finally:
        ended(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err), time.monotonic() - begun


def tuned(
    program: Sequence[object], folder: Path, budget_s: float, allow: str, *more: str
) -> tuple[dict[str, Any], float]:
    """Have ``paceline tune`` search for a recipe; return what it says (``paceline.tune/1``) and its wall seconds.

    What earlier searches on this machine achieved is not asked: each program is judged by itself.

    Raises:
        RunFailed: It failed.
    """
    options = ["--budget", f"{budget_s:.0f}s", "--allow", allow, "--recipe", "recipe.toml", "--json", "tune.json"]
    command = [sys.executable, "-m", "paceline", "tune", *options, *more, *map(str, program)]
    done, wall_s = called(command, folder, 3 * budget_s + 300)
    if done.returncode:
        raise RunFailed(f"paceline tune ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return json.loads((folder / "tune.json").read_text()), wall_s
