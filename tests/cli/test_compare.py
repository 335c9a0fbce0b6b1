"""Does `paceline compare` judge, explain and exit as CI needs it?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Paceline, call
from tests.explain.written_run import steady_rows, step, write_launch, write_rank, write_run

RUNS = Path(".paceline/runs")


@pytest.fixture
def place(place: Path) -> Path:
    """The recorded runs, `fast` and `slow` with times that do not depend on what else this machine does."""
    for run_id, wait_s in (("fast", 0.005), ("slow", 0.025)):
        shutil.rmtree(place / RUNS / run_id)
        waits = [wait_s * (1 + 0.05 * (i % 7)) for i in range(150)]
        rows = steady_rows([wait + 0.004 for wait in waits], {"data_wait": waits})
        write_launch(place / RUNS / run_id, command=["python", "train.py", str(wait_s)])
        write_rank(place / RUNS / run_id, rows)
    return place


def test_real_runs_are_compared(recorded: Path, tmp_path: Path) -> None:
    done = call("compare", "fast", "slow", "--json", str(tmp_path / "c.json"), cwd=recorded)
    found = json.loads((tmp_path / "c.json").read_text())
    assert done.returncode == found["regression"]
    assert found["main_phase"] == "data_wait"
    assert found["time_ratio"]["value"] > 1
    assert "differs: command: " in done.stdout


def test_regression_exits_1_and_says_why(paceline: Paceline) -> None:
    done = paceline("compare", "fast", "slow")
    assert done.returncode == 1
    assert "\nregression: " in done.stdout
    assert "why: of the change, data wait" in done.stdout
    assert "differs: command: " in done.stdout
    assert done.stderr == ""


def test_the_other_way_round_is_faster(paceline: Paceline) -> None:
    done = paceline("compare", "slow", "fast", "--strict")
    assert done.returncode == 0
    assert "\nfaster: " in done.stdout


def test_the_same_run_is_the_same(paceline: Paceline) -> None:
    done = paceline("compare", "slow", "slow")
    assert done.returncode == 0
    assert "\nsame: " in done.stdout
    assert "the same in all 150 steps" in done.stdout


def test_tolerance_decides(paceline: Paceline) -> None:
    done = paceline("compare", "fast", "slow", "--tolerance", "5000%")
    assert done.returncode == 0
    assert "\nslower: " in done.stdout


@pytest.mark.parametrize("tolerance", ["5", "five", "-3%", "", "nan"])
def test_tolerance_that_is_none(paceline: Paceline, tolerance: str) -> None:
    done = paceline("compare", "fast", "slow", "--tolerance", tolerance)
    assert done.returncode == 2
    assert "5% or 0.05" in done.stderr


@pytest.mark.parametrize(("flags", "exit_code"), [((), 0), (("--strict",), 1)])
def test_too_short_to_tell(paceline: Paceline, place: Path, flags: tuple[str, ...], exit_code: int) -> None:
    write_run(place / "short", [step(i, 0.1) for i in range(8)])
    done = paceline("compare", "slow", "short", *flags)
    assert done.returncode == exit_code
    assert "cannot tell" in done.stdout


def test_json_and_markdown(paceline: Paceline, place: Path) -> None:
    done = paceline("compare", "fast", "slow", "--json", "c.json", "--markdown", "c.md")
    assert done.stderr == "paceline: wrote c.json, c.md\n"
    found = json.loads((place / "c.json").read_text())
    assert next(iter(found)) == "schema"
    assert found["schema"] == "paceline.compare/1"
    assert (found["outcome"], found["regression"], found["main_phase"]) == ("regression", True, "data_wait")
    ratio = found["time_ratio"]
    assert 1.05 < ratio["low"] < ratio["value"] < ratio["high"]
    assert found["before"]["run_id"] == "fast"
    assert found["phases"]["data_wait"]["change_s"]["low"] > 0
    assert found["tolerance"] == 0.05
    text = (place / "c.md").read_text()
    assert "| data wait |" in text
    assert "`regression`" in text


def test_runs_that_are_not_there(paceline: Paceline) -> None:
    done = paceline("compare", "fast", "slw")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean slow?" in done.stderr


def test_file_instead_of_a_run(paceline: Paceline) -> None:
    done = paceline("compare", "fast", "train.py")
    assert done.returncode == 2
    assert "a run is a folder" in done.stderr


def test_one_run_is_not_enough(paceline: Paceline) -> None:
    done = paceline("compare", "fast")
    assert done.returncode == 2
    assert "AFTER" in done.stderr
