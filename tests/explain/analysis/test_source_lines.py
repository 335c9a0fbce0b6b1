"""Which lines of source are read around a function, and when is a file left alone?"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report import sample

from paceline.explain.analysis.source_lines import AROUND, source_lines
from paceline.record.run import Launch, Rank, Run

PROGRAM = """\
import random


def rotate(image, degrees=15):
    \"\"\"Turn it.\"\"\"
    angle = random.uniform(-degrees, degrees)
    return image.rotate(angle)


def crop(image):
    return image
"""
NAME = "rotate (train.py:7)"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    os.utime(path, (time.time() - 100,) * 2)
    return path


def run_of(file: str, cwd: str = "", started_unix_s: float | None = None) -> Run:
    launch = Launch(
        host="here", pid=1, argv=[], command=[], started_unix_s=started_unix_s or time.time(), started_ns=0, cwd=cwd
    )
    entry = {"slot": "data_wait", "side": "", "function": NAME, "count": 9, "leaf": None, "file": file}
    rank = Rank(
        folder=Path("nowhere"), host="here", pid=1, rank=0, world=1, meta={}, steps=None, tail=None, ticks=None,
        summary={"hot": [entry], "syncs": None},
    )  # fmt: skip
    return Run(run_id="x", folder=Path("nowhere"), launches=[launch], ranks=[rank], earlier=[], workers=[], gauges={})


def test_the_function_is_read_from_its_head_to_its_end(program: Path) -> None:
    found = source_lines(run_of(str(program)), [], [NAME])[NAME]
    assert (found.first, found.marked, found.changed) == (4, 7, False)
    assert found.lines[0] == "def rotate(image, degrees=15):"
    assert found.lines[found.marked - found.first] == "    return image.rotate(angle)"
    assert found.lines[-1] == "    return image.rotate(angle)"  # the next function is not shown


def test_a_relative_path_is_of_the_folder_that_the_run_began_in(program: Path) -> None:
    assert NAME in source_lines(run_of("train.py", cwd=str(program.parent)), [], [NAME])


def test_a_function_that_only_a_finding_names_is_read(program: Path) -> None:
    finding = replace(sample.CPU_BOUND, evidence=(sample.evidence(f"{NAME} holds 58%.", 0.58, "share"),))
    assert NAME in source_lines(run_of(str(program)), [finding], [])
    assert source_lines(run_of(str(program)), [sample.CPU_BOUND], []) == {}


def test_a_file_that_changed_since_the_run_is_not_quoted(program: Path) -> None:
    found = source_lines(run_of(str(program), started_unix_s=time.time() - 1000), [], [NAME])[NAME]
    assert found.changed
    assert list(found.lines) == []


@pytest.mark.parametrize("file", ["gone.py", "/etc/hostname", "<string>", "."])
def test_what_is_no_source_is_not_read(program: Path, file: str) -> None:
    assert source_lines(run_of(file, cwd=str(program.parent)), [], [NAME]) == {}


def test_a_line_past_the_end_is_not_shown(program: Path) -> None:
    program.write_text("x = 1\n")
    os.utime(program, (time.time() - 100,) * 2)
    assert source_lines(run_of(str(program)), [], [NAME]) == {}


def test_few_lines_of_a_long_function(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("def long():\n" + "    step()\n" * 50)
    os.utime(path, (time.time() - 100,) * 2)
    run = run_of(str(path))
    run.ranks[0].summary["hot"][0]["function"] = "long (train.py:30)"
    found = source_lines(run, [], ["long (train.py:30)"])["long (train.py:30)"]
    assert (found.first, len(found.lines)) == (30 - AROUND, 2 * AROUND + 1)
    assert set(found.lines) == {"step()"}
