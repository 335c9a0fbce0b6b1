"""Is every mistake answered by one line of the same style, and do results go where they are sent?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Paceline, call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tnue", "x.py"], "no command 'tnue'; did you mean `paceline tune`?"),
        (["data", "convrt"], "did you mean `paceline data convert`?"),
        (["plan", "calibrat"], "did you mean `paceline plan calibrate`?"),
        (["run", "table.csv"], "table.csv is not a Python script; give the training script"),
        (["trace", "nofile.json"], "there is no file or folder nofile.json; give capture files"),
        (["data", "inspect", "table.csv"], "table.csv is a file, not a folder of shards"),
        (["data", "convert", "strange", "out"], "the format of strange is not recognised; give it with --format"),
        (["run", "--recipe", ".", "train.py"], ". is not a recipe: Is a directory; `paceline tune` writes one"),
        (["run", "--layout", "dp", "train.py"], "'dp' gives no size; write dp=2, shard=2 or dp=2,shard=2"),
        (["plan", "validate", "nofile.csv"], "cannot read nofile.csv: No such file or directory; give measurements"),
        (["config", "run", "--zzz"], "`paceline run` has no option --zzz"),
        (["frobnicate"], "the commands are run, tune,"),
        (["train.py"], "type `paceline run train.py`"),
        (["report", "--jsno", "x"], "`paceline report` has no option --jsno; did you mean --json?"),
        (["plan", "--gpu", "8xH100-SXM"], "did you mean --gpus?"),
        (["run", "--budget", "60", "train.py"], "has no option --budget; --budget is an option of `paceline tune`;"),
        (["report", "--shard-mb", "1"], "--shard-mb is an option of `paceline data convert`;"),
        (["report", "--open"], "--json, --markdown, --html and --open need a run"),
        (["explain", "DATA001", "DATA002"], "`paceline explain` does not take the extra argument (DATA002)"),
        (["report", "--zzz"], "`paceline report --help` lists all options"),
        (["run", "--run-id", "last", "train.py"], "--run-id last would be mistaken for the newest run"),
        (["run", "--price"], "--price needs a value; `paceline run --help`"),
        (["run", "--price", "much", "x.py"], "--price: 'much' is not a number;"),
        (["run", "--price", "-1", "x.py"], "--price: -1.0 is too small: it must be at least 0"),
        (["run", "--price", "nan", "x.py"], "--price: nan is not a finite number; give a number such as 2.5"),
        (["plan", "m", "--gpus", "8xh100", "--max-price", "inf"], "--max-price: inf is not a finite number"),
        (["tune", "--trials", "many", "x.py"], "--trials: 'many' is not a whole number;"),
        (["tune", "--budget", "soon", "x.py"], "--budget: 'soon' is not a duration; write 90s, 10m or 1h"),
        (["tune", "--goal", "fame", "x.py"], "--goal: 'fame' is not one of 'time', 'memory', 'cost'"),
        (["tune"], "no program was given; name a script (`paceline tune train.py`)"),
        (
            ["tune", "--recipe", "-", "x.py"],
            "--recipe: this result cannot be written to stdout; give the name of a file",
        ),
        (["compare"], "`paceline compare` needs BEFORE; for example `paceline compare "),
        (["trace"], "`paceline trace` needs FILE|FOLDER...; for example `paceline trace trace.json.gz`"),
        (["data", "export", "a", "b"], "needs --format tfrecord|hdf5|webdataset"),
        (["data", "convert", "a"], "expected SRC and DEST, not 1 path: a"),
        (["report", "a", "b"], "`paceline report` does not take the extra argument (b)"),
        (["config", "explain"], "no command with settings is called 'explain'"),
        (["compare", "a", "b", "--json", "-", "--markdown", "-"], "cannot write two results to stdout"),
        (["report", "a", "--json", ""], "--json: the name of the file is empty"),
        (["plan", "calibrate", "--storage", "nowhere"], "--storage nowhere is not a writable folder"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    for name in ("table.csv", "strange", "train.py"):
        (tmp_path / name).write_text("")
    done = call(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("paceline: ")
    assert said in line


def test_json_goes_to_stdout_and_the_rest_to_stderr(paceline: Paceline, place: Path) -> None:
    for arguments, schema in ((["report", "slow"], "run/1"), (["compare", "fast", "slow"], "compare/1")):
        done = paceline(*arguments, "--json", "-")
        assert json.loads(done.stdout)["schema"] == f"paceline.{schema}"
        assert "slow" in done.stderr
        assert not (place / "-").exists()


def test_markdown_and_html_go_to_stdout(paceline: Paceline) -> None:
    assert "loader-serial" in paceline("report", "slow", "--markdown", "-").stdout
    assert paceline("report", "slow", "--html", "-").stdout.startswith("<!doctype html>")


def test_json_of_a_run_follows_the_output_of_the_program(paceline: Paceline, place: Path) -> None:
    done = paceline("run", "--json", "-", "train.py", "0", "30")
    first, _, rest = done.stdout.partition("\n")
    assert (first, done.returncode) == ("trained", 0)
    assert json.loads(rest)["schema"] == "paceline.run/1"
    assert not (place / "-").exists()


def test_result_of_report_has_no_prefix(paceline: Paceline) -> None:
    done = paceline("report", "slow")
    assert "paceline: " not in done.stdout
    assert "\nverdict: loader-serial" in done.stdout


@pytest.mark.parametrize("verb", [["report", "slow"], ["compare", "fast", "slow"], ["explain"], ["--help"]])
def test_a_reader_that_ends_early_is_no_error(place: Path, verb: list[str]) -> None:
    command = [sys.executable, "-m", "paceline", *verb]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
