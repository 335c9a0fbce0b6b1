"""Runs small programs under a recipe, as `paceline run --recipe` and trials do, but for the supervision."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.improve import child
from paceline.observe.supervise import INJECT


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    held: Mapping[str, str]  # setting -> what it means here
    refused: Mapping[str, str]  # setting -> why


@pytest.fixture
def ran(tmp_path):
    """Run a program under a recipe; `scratch` takes what it writes."""

    def run(source: str, recipe: Mapping[str, Any] | None = None, *, scratch: Path | None = None) -> Ran:
        program, place = tmp_path / "train.py", tmp_path / "run"
        program.write_text(textwrap.dedent(source))
        for part in ("ranks", "workers", "gauges"):
            (place / part).mkdir(parents=True, exist_ok=True)
        for old in (place / "held").glob("*"):
            old.unlink()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(INJECT), str(Path(__file__).parents[2] / "src")]),
        }
        if recipe is not None:
            environment |= {"PACELINE_WATCH_DIR": str(place), **child.applied(recipe)}
        if scratch is not None:
            environment[child.SCRATCH] = str(scratch)
        done = subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120
        )
        told = [json.loads(x) for p in (place / "held").glob("*.jsonl") for x in p.read_text().splitlines()]
        held, refused = ({t["key"]: t["what"] for t in told if t["held"] is is_held} for is_held in (True, False))
        return Ran(done.returncode, done.stdout, done.stderr, held, refused)

    return run
