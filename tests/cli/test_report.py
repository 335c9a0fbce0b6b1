"""Does `paceline report` find the run that is meant and say what it holds?"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import Paceline, call

from paceline.cli.base.runs import find_run
from paceline.core.errors import UsageError
from paceline.record import layout
from paceline.report.run.run_list import RunLine, print_runs

RUNS = Path(".paceline") / "runs"


def test_list_names_every_run_newest_first(paceline: Paceline) -> None:
    done = paceline("report")
    heads, *lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert heads.split() == ["run", "began", "ended", "verdict", "command"]
    assert [line.split()[0] for line in lines] == ["crashed", "slow", "fast"]
    assert "exited with code 1" in lines[0]
    assert "loader-serial" in lines[1]
    assert lines[1].endswith("train.py 0.0025 150")
    assert "next: paceline report crashed" in done.stderr


def test_list_of_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    done = call("report", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "paceline run train.py" in done.stderr


def test_list_is_short_unless_asked(paceline: Paceline, place: Path) -> None:
    for number in range(20):
        shutil.copytree(place / RUNS / "fast", place / RUNS / f"copy-{number:02d}")
    assert len(paceline("report").stdout.splitlines()) == 21
    assert "3 older runs are not shown; `paceline report --all`" in paceline("report").stderr
    assert len(paceline("report", "--all").stdout.splitlines()) == 24


@pytest.mark.parametrize("name", ["slow", "slo", str(RUNS / "slow"), f"{RUNS / 'slow'}/"])
def test_a_run_is_found_by_path_id_or_beginning(paceline: Paceline, name: str) -> None:
    done = paceline("report", name)
    assert done.returncode == 0
    assert "verdict: loader-serial" in done.stdout
    assert "report: .paceline/runs/slow/report.html" in done.stdout
    assert "next: paceline tune train.py" in done.stdout
    assert done.stderr == ""


def test_runs_before_the_last_are_counted_back(tmp_path: Path) -> None:
    for second, name in enumerate(("first", "second", "third")):
        (tmp_path / name / "ranks").mkdir(parents=True)
        os.utime(tmp_path / name, (second, second))
    assert [find_run(name, tmp_path).name for name in ("last", "last~0", "last~1", "last~2")] == [
        "third", "third", "second", "first",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="last~3"):
        find_run("last~3", tmp_path)


def test_the_only_run_is_not_called_all_runs(tmp_path: Path) -> None:
    (tmp_path / "20261121-0315-train-3fa2" / "ranks").mkdir(parents=True)
    with pytest.raises(UsageError, match="lists the only run,"):
        find_run("zzzz", tmp_path)


@pytest.mark.parametrize("width", [60, 80])
def test_names_of_runs_are_never_cut(width: int) -> None:
    run_id = "20261121-031500-image_classifier-3fa2"
    lines = [RunLine(run_id=run_id, age_s=5.4, ended="exited with code 1", verdict="loader-serial", command="x" * 99)]
    file = io.StringIO()
    print_runs(lines, Console(file=file, width=width, force_terminal=True, no_color=True, _environ={}))
    text = re.sub("\x1b\\[[0-9;]*m", "", file.getvalue())
    assert f"{run_id}  loader-serial" in text
    assert "5 s ago, exited with code 1: xxx" in text
    assert max(map(len, text.splitlines())) <= width


def test_last_is_the_newest(paceline: Paceline) -> None:
    done = paceline("report", "last")
    assert re.search(r"^exited with code 1 after .* s: ValueError at train.py:\d+: out of luck", done.stdout)
    assert done.returncode == 0


def test_runs_elsewhere(paceline: Paceline, place: Path) -> None:
    (place / RUNS).rename(place / "kept")
    assert paceline("report", "slow").returncode == 2
    assert paceline("report", "slow", "--dir", "kept").returncode == 0
    assert paceline("report", "slow", PACELINE_REPORT_DIR="kept").returncode == 0


def test_files_are_written_and_named(paceline: Paceline, place: Path) -> None:
    page = place / RUNS / "slow" / "report.html"
    page.unlink()
    done = paceline("report", "slow", "--json", "run.json", "--markdown", "run.md", "--html", "run.html")
    assert done.stderr == "paceline: wrote run.json, run.md, run.html\n"
    found = json.loads((place / "run.json").read_text())
    assert (found["schema"], found["run_id"], found["verdict"]) == ("paceline.run/1", "slow", "loader-serial")
    assert "loader-serial" in (place / "run.md").read_text()
    assert page.read_text() == (place / "run.html").read_text()


def test_file_that_cannot_be_written(paceline: Paceline) -> None:
    done = paceline("report", "slow", "--json", "no/such/folder/run.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write no/such/folder/run.json" in done.stderr


def test_page_that_cannot_be_written_stops_nothing(paceline: Paceline, place: Path) -> None:
    page = place / RUNS / "slow" / "report.html"
    page.unlink()
    page.mkdir()
    done = paceline("report", "slow")
    assert done.returncode == 0
    assert "verdict: loader-serial" in done.stdout
    assert "report:" not in done.stdout
    assert "cannot write .paceline/runs/slow/report.html" in done.stderr
    assert "--html FILE" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["slwo"], "there is no run 'slwo' in .paceline/runs; did you mean slow?"),
        (["crash-2"], "did you mean crashed?"),
        (["zzzzzz"], "`paceline report` lists all 3 runs"),
        (["train.py"], "train.py is a file"),
        (["."], "contains no run"),
        (["slow", "--dir", "nowhere"], "make a run with `paceline run train.py`"),
        (["--json", "run.json"], "paceline report last --json"),
    ],
)
def test_what_cannot_be_found_is_said_with_a_way_out(paceline: Paceline, arguments: list[str], said: str) -> None:
    done = paceline("report", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_beginning_of_several_runs_is_refused(paceline: Paceline, place: Path) -> None:
    shutil.copytree(place / RUNS / "slow", place / RUNS / "slow-2")
    done = paceline("report", "sl")
    assert done.returncode == 2
    assert "2 runs begin with 'sl'" in done.stderr
    assert paceline("report", "slow").returncode == 0


def test_newer_schema_is_refused_and_still_listed(paceline: Paceline, place: Path) -> None:
    launch = next((place / RUNS / "slow").glob("launch-*.json"))
    launch.write_text(json.dumps(json.loads(launch.read_text()) | {"schema": 99}))
    done = paceline("report", "slow")
    assert (done.returncode, done.stdout) == (2, "")
    assert "upgrade with `pip install -U paceline`" in done.stderr
    listed = paceline("report")
    assert listed.returncode == 0
    assert "written by a newer Paceline" in listed.stdout


def test_run_cut_off_in_the_middle_is_readable(paceline: Paceline, place: Path) -> None:
    """What `kill -9` of everything leaves: no end, a torn row, a torn line."""
    folder = place / RUNS / "slow"
    next(folder.glob("end-*.json")).unlink()
    for file in folder.glob("ranks/*/steps.bin"):
        file.write_bytes(file.read_bytes()[:-17])
    for file in folder.glob("ranks/*/notes.jsonl"):
        file.write_bytes(file.read_bytes()[:-9])
    done = paceline("report", "slow")
    assert done.returncode == 0
    assert "Paceline itself was killed" in done.stdout
    assert "verdict: loader-serial" in done.stdout
    assert "interrupted" in paceline("report").stdout


def test_summary_that_is_no_json_is_a_note_and_not_the_end(paceline: Paceline, place: Path) -> None:
    summary = next((place / RUNS / "slow").glob("ranks/*/summary.json"))
    summary.write_text("{torn")
    done = paceline("report", "slow", "--json", "run.json")
    assert done.returncode == 0
    assert "summary.json" in json.loads((place / "run.json").read_text())["problems"][0]


def test_run_that_goes_on_is_explained_until_now(place: Path) -> None:
    command = [sys.executable, "-m", "paceline", "run", "-q", "--run-id", "going", "train.py", "0.002", "100000"]
    going = subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for_steps(place / RUNS / "going", 60)
        done = call("report", "going", cwd=place)
        listed = call("report", cwd=place)
    finally:
        going.terminate()
        going.wait(60)
    assert done.returncode == 0
    assert done.stdout.startswith("still running")
    assert "verdict: loader-serial" in done.stdout
    assert listed.stdout.splitlines()[1].split()[0] == "going"
    assert "still running" in listed.stdout.splitlines()[1]


def wait_for_steps(folder: Path, number: int) -> None:
    for _ in range(600):
        if sum(file.stat().st_size for file in folder.glob("ranks/*/steps.bin")) >= number * layout.STEP.size:
            return
        time.sleep(0.1)
    raise AssertionError("no steps were recorded within a minute")
