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

from paceline.inprocess import settings
from paceline.monitor.supervision import INJECT


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    held: Mapping[str, str]  # setting -> what it means here
    refused: Mapping[str, str]  # setting -> why


def environment_of(place: Path, recipe: Mapping[str, Any] | None, scratch: Path | None = None) -> dict[str, str]:
    """The environment of a program that runs under a recipe, with its record in a folder that is new."""
    for part in ("ranks", "workers", "gauges"):
        (place / part).mkdir(parents=True, exist_ok=True)
    for old in (place / "held").glob("*"):
        old.unlink()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(INJECT), str(Path(__file__).parents[2] / "src")])}
    if recipe is not None:
        environment |= {"PACELINE_WATCH_DIR": str(place), **settings.applied(recipe)}
    if scratch is not None:
        environment[settings.SCRATCH] = str(scratch)
    return environment


def told_in(place: Path, is_held: bool) -> dict[str, str]:
    """What the processes of a program have told of its settings."""
    told = [json.loads(x) for p in (place / "held").glob("*.jsonl") for x in p.read_text().splitlines()]
    return {t["key"]: t["what"] for t in told if t["held"] is is_held}


@pytest.fixture
def ran(tmp_path):
    """Run a program under a recipe; `scratch` takes what it writes."""

    def run(source: str, recipe: Mapping[str, Any] | None = None, *, scratch: Path | None = None) -> Ran:
        program, place = tmp_path / "train.py", tmp_path / "run"
        program.write_text(textwrap.dedent(source))
        done = subprocess.run(
            [sys.executable, str(program)],
            capture_output=True,
            text=True,
            env=environment_of(place, recipe, scratch),
            cwd=tmp_path,
            timeout=120,
        )
        return Ran(done.returncode, done.stdout, done.stderr, told_in(place, True), told_in(place, False))

    return run


@pytest.fixture
def ran_on_ranks(tmp_path):
    """Run a program as so many ranks, as a launcher does; what each printed, and what all told."""

    def run(source: str, recipe: Mapping[str, Any] | None = None, *, world: int = 2) -> list[Ran]:
        program, place = tmp_path / "train.py", tmp_path / "run"
        program.write_text(textwrap.dedent(source))
        (tmp_path / "meeting").unlink(missing_ok=True)
        environment = environment_of(place, recipe) | {"WORLD_SIZE": str(world), "MEETING": str(tmp_path / "meeting")}
        started = [
            subprocess.Popen(
                [sys.executable, str(program)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**environment, "RANK": str(rank)},
                cwd=tmp_path,
            )
            for rank in range(world)
        ]
        said = [process.communicate(timeout=120) for process in started]
        held, refused = told_in(place, True), told_in(place, False)
        return [Ran(p.returncode, out, err, held, refused) for p, (out, err) in zip(started, said)]

    return run
