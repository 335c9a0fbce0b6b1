"""Run a program up to its first training step and return what it was about to train. Nothing is trained or saved.

The program first runs with weights on the meta device, which have no values and take neither memory nor time. A program
that needs values, for example to read a number from a weight, runs once more with real weights on the CPU. In this
second run the program ends at its first forward pass.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.hardware.operating_system import check_system
from paceline.monitor.supervision import INJECT, startable

try:
    import resource
except ModuleNotFoundError:  # Windows: `hardware.operating_system` rejects the commands that need this module
    resource = None  # type: ignore[assignment]

LIMIT_S = 300.0
_TOLD_LINES = 3


@dataclass(frozen=True, kw_only=True)
class Caught:
    """The model, optimizer and batch that a program was about to train.

    Attributes:
        note: The note that the first-step capture in the program wrote.
        real: Whether the weights had values.
    """

    note: Mapping[str, Any]
    real: bool


def catch(command: Sequence[str], environment: Mapping[str, str], limit_s: float = LIMIT_S) -> Caught:
    """Run a program up to its first step and return the captured note.

    Raises:
        UsageError: The program made no step. The message quotes its last output lines.
    """
    check_system("planning for a program", "posix")
    said = []
    for real in (False, True):
        with tempfile.TemporaryDirectory(prefix="paceline-plan-") as folder:
            path = Path(folder, "caught.json")
            ending = _run(command, _environment(environment, path, real), Path(folder, "output"), limit_s)
            if path.is_file():
                return Caught(note=json.loads(path.read_text(encoding="utf-8")), real=real)
        said.append(ending)
        if ending.endswith(_TOO_LONG):
            break
    raise UsageError(
        f"the program came to no training step ({said[-1]}); without a GPU it must get as far as its first one, with "
        "a model of torch.nn and an optimizer of torch.optim. Or give numbers: --params 8b --layers 32 --hidden 4096"
    )


_TOO_LONG = "and was ended"


def _environment(environment: Mapping[str, str], path: Path, real: bool) -> dict[str, str]:
    """Return an environment without a GPU and without experiment trackers that would log a run."""
    inherited = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(INJECT)]
    return {
        **environment,
        "PACELINE_CATCH_FILE": str(path),
        "PACELINE_CATCH_REAL": str(int(real)),
        "PYTHONPATH": os.pathsep.join([str(INJECT), *inherited]),
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_MODE": "disabled",
        "COMET_MODE": "disabled",
    }


def _run(command: Sequence[str], environment: Mapping[str, str], output: Path, limit_s: float) -> str:
    """Run the program, at most for the time limit; kill its process group; return how it ended and its last output."""
    with output.open("wb") as file, startable(command):
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _limit_memory(process.pid)
        code: int | None = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    words = " | ".join(_last_words(output))
    ended = f"after {limit_s:g} s it had not {_TOO_LONG}" if code is None else f"it ended with {code}"
    return ended if code is None or not words else f"{ended}: {words}"


def _limit_memory(pid: int) -> None:
    """Limit a program to half of the free memory: a model that is too large then fails without harming the host."""
    with suppress(OSError, AttributeError, ValueError):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        resource.prlimit(pid, resource.RLIMIT_DATA, (free // 2, free // 2))


def _last_words(output: Path) -> list[str]:
    """Return the last lines that a program wrote, which usually contain its error."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.strip()[:300] for line in lines if line.strip()][-_TOLD_LINES:]
