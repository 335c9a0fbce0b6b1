"""Programs on several ranks, each a process with the environment that `torchrun` gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FORKED = ROOT / "tests" / "train" / "forked.py"
RANKS_PROGRAM = ROOT / "benchmarks" / "_parity_ranks.py"


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def on_ranks(ranks: int, *command: str | Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a program on some ranks of this machine, which meet at a port that is free."""
    line = [sys.executable, str(FORKED), str(ranks), *map(str, command)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, env=environment())


def results_of(program: str, ranks: int, folder: Path, *arguments: str, timeout_s: float = 150) -> Any:
    """Run the text of a program on some ranks; return what it wrote as JSON to the path in its first argument.

    The program and its results, ``program.py`` and ``result.json``, are in the folder.
    """
    path, result = folder / "program.py", folder / "result.json"
    path.write_text(program)
    ran = on_ranks(ranks, path, result, *arguments, timeout_s=timeout_s)
    # torch's processes may abort at their very end after a checkpoint was read, with all that was asked for done.
    assert result.exists(), ran.stderr[-4000:]
    return json.loads(result.read_text())


def held_against_one_process(ranks: int, steps: int, cases: list[dict], folder: Path) -> list[dict]:
    """Train under each case, and return how far it is from a loop written by hand on one process."""
    work, result = folder / "work.json", folder / "result.json"
    work.write_text(json.dumps({"steps": steps, "cases": cases}))
    ran = on_ranks(ranks, RANKS_PROGRAM, work, result)
    # torch's processes may abort at their very end after a checkpoint was read, with all that was asked for done.
    assert result.exists(), ran.stderr[:4000]
    return json.loads(result.read_text())
