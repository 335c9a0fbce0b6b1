"""Whatever is wrong: is it said in one clear line with the way out, and never in a traceback of ours?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import PACELINE, PROGRAMS, Result, environment, watched

TRAIN = PROGRAMS / "endless.py"


def assert_refused(result: Result, *words: str) -> None:
    """Nothing was started: exit code 2 and one line that says what to do."""
    assert result.code == 2, result.err
    assert result.out == ""
    assert "Traceback" not in result.err
    (line,) = [each for each in result.err.splitlines() if each.startswith(("paceline: ", "Error: "))]
    assert [word for word in words if word not in line] == [], line


def assert_own_failure(result: Result, code: int, *words: str) -> None:
    """The program failed before training: its code, its own words, one line of ours, no verdict and no run."""
    assert result.code == code, result.err
    assert [word for word in words if word not in "\n".join(result.theirs)] == [], result.err
    (line,) = result.ours
    assert line.startswith(f"paceline: the program ended with code {code}")
    assert line.endswith("; there is no verdict, and the record of the run was not kept")
    assert result.folder is None


# ------------------------------------------------------------------------------------------- the command line


def test_a_missing_script_with_a_near_name(script, tmp_path):
    script("")
    assert_refused(watched(["trian.py"], tmp_path), "no script 'trian.py'", "did you mean train.py?")
    assert_refused(watched(["sh"], tmp_path), "paceline run -- sh")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["no program was given", "paceline run train.py"]),
        (["--"], ["no program was given"]),
        (["--layout", "zz=2", "train.py"], ["no axis 'zz'", "the axes are dp and shard:"]),
        (["--layout", "tp=2", "train.py"], ["tp cannot be applied", "dp=2, shard=2 or dp=2,shard=2"]),
        (["--wrong", "train.py"], ["--wrong"]),
        (["-m"], ["-m"]),
        (["--price", "much", "train.py"], ["--price"]),
        (["--instance", "p5.nothing", "train.py"], ["p5.nothing"]),
        (
            ["--json", "missing/x.json", "train.py"],
            ["missing/x.json", "no folder missing", "give a file in another folder"],
        ),
        (["--html", ".", "train.py"], ["folder"]),
        (["--run-id", "../x", "train.py"], ["--run-id", "../x"]),
        (["empty"], ["__main__.py"]),
        (["--", "no-such-program"], ["command not found", "no-such-program", "PATH"]),
        (["--", "train"], ["is a folder"]),
        (["--", "not-a-program"], ["cannot be started", "#!/bin/sh"]),
        (["--", "./train.py"], ["is not executable", "leave out"]),
        (["shell.sh"], ["not a Python script", "paceline run -- shell.sh"]),
        (["/bin/ls"], ["not a Python script", "paceline run -- /bin/ls"]),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(script, tmp_path, arguments, words):
    script("print('started')")
    script("#!/bin/sh\necho started\n", "shell.sh").chmod(0o755)
    script("\0", "not-a-program").chmod(0o755)
    (tmp_path / "empty").mkdir()
    (tmp_path / "train").mkdir()
    result = watched(arguments, tmp_path, PATH=f"{os.defpath}:{tmp_path}")
    assert_refused(result, *words)
    assert result.folder is None


def test_a_name_with_spaces_and_umlauts(script, tmp_path):
    program = script("print('ja')", "tr äin.py")
    result = watched([program.name], tmp_path)
    assert (result.code, result.out) == (0, "ja\n")
    assert "no-steps" in result.err


# ------------------------------------------------------------------------------------------- the program


def test_a_syntax_error_is_the_programs_own(script, tmp_path):
    assert_own_failure(watched([script("for x in\n")], tmp_path), 1, "SyntaxError: invalid syntax", "for x in")


def test_a_missing_argument_is_the_programs_own(script, tmp_path):
    program = script("import argparse; p = argparse.ArgumentParser(); p.add_argument('data'); p.parse_args()")
    assert_own_failure(watched([program], tmp_path), 2, "the following arguments are required: data")


def test_an_option_of_ours_behind_the_program_is_pointed_out(script, tmp_path):
    program = script("import argparse; argparse.ArgumentParser().parse_args()")
    result = watched([program, "--json", "out.json"], tmp_path)
    assert "--json stands after the program, so it was passed to the program" in result.ours[-1]
    assert f"`paceline run --json … {program}`" in result.ours[-1]


def test_such_an_option_is_shown_before_a_module_and_a_command(tmp_path):
    (tmp_path / "failing.py").write_text("raise SystemExit(1)")
    for given, shown in (
        (["-m", "failing"], "-m failing"),
        (["--", sys.executable, "failing.py"], f"-- {sys.executable} …"),
    ):
        result = watched([*given, "--json", "out.json"], tmp_path)
        assert f"`paceline run --json … {shown}`" in result.ours[-1]


def test_the_warning_of_torch_about_many_workers_is_announced(script, tmp_path):
    (tmp_path / "recipe.toml").write_text("[loader]\nnum_workers = 200\n")
    result = watched(["--recipe", str(tmp_path / "recipe.toml"), script("print('ja')")], tmp_path)
    assert "the recipe starts 200 loader workers on " in result.ours[0]
    assert "you can ignore its warning if" in result.ours[0]


def test_a_missing_module_is_the_programs_own(tmp_path):
    assert_own_failure(watched(["-m", "no.such.module"], tmp_path), 1, "No module named 'no'")


def test_a_program_that_does_not_train(script, tmp_path):
    result = watched([script("import torch; print(torch.ones(2).sum().item())")], tmp_path)
    assert (result.code, result.out, result.theirs) == (0, "2.0\n", [])
    assert "no training step was seen" in result.err.lower()


def test_a_program_that_fails_in_its_first_step(script, tmp_path):
    program = script("import torch\nmodel = torch.nn.Linear(4, 4)\nmodel(torch.ones(2, 4))\nmodel(torch.ones(2, 5))\n")
    result = watched([program], tmp_path)
    assert result.code == 1
    assert "RuntimeError" in result.err
    assert result.diagnosis.verdict == "no-steps"
    assert result.diagnosis.ended.startswith("exited with code 1: RuntimeError at train.py:4: mat1 and mat2 shapes")


def test_no_torch_where_the_program_runs(script, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "other"], cwd=tmp_path, check=True)
    program = script("import torch")
    result = watched(["--", "other/bin/python", program], tmp_path)
    assert_own_failure(result, 1, "ModuleNotFoundError: No module named 'torch'")


# ------------------------------------------------------------------------------------------- the disk


@pytest.mark.parametrize("where", ["/proc/nowhere", "train.py", "train.py/runs"])
def test_a_folder_that_cannot_be_made(script, tmp_path, where):
    script("print('started')")
    assert_refused(watched(["--dir", where, "train.py"], tmp_path), "cannot write", "--dir DIR")


@pytest.fixture
def mounted(tmp_path):
    """Mount a small file system in memory, where this machine lets us."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk{len(places)}"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_read_only_disk(script, tmp_path, mounted):
    script("print('started')")
    disk = mounted("ro")
    assert_refused(watched(["--dir", disk / "runs", "train.py"], tmp_path), "Read-only file system", "--dir DIR")
    assert_refused(watched(["--json", disk / "x.json", "train.py"], tmp_path), "read-only")


def test_a_disk_that_is_full_from_the_start(script, tmp_path, mounted):
    script("print('started')")
    disk = mounted("size=64k")
    with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(bytes(4096))
    assert_refused(watched(["--dir", disk / "runs", "train.py"], tmp_path), "No space left", "--dir DIR")


def test_a_disk_that_fills_up_on_the_way(tmp_path, mounted):
    disk = mounted("size=96k")
    given = ["--dir", disk / "runs", TRAIN, "--steps", "1500", "--workers", "1", "--then", "exit"]
    result = watched(given, tmp_path)
    assert (result.code, result.theirs) == (3, [])
    assert result.out.startswith("going")
    (stopped,) = [line for line in result.ours if "watching stopped" in line]
    assert "No space left on device" in stopped
    assert not [line for line in result.ours if "internal error" in line]


# ------------------------------------------------------------------------------------------- the record


@pytest.fixture(scope="session")
def recorded(once) -> Path:
    """A run with two workers, to be spoilt in copies."""

    def run(folder: Path) -> Path:
        result = watched([TRAIN, "--steps", "300", "--workers", "2"], folder)
        assert result.code == 0
        return result.folder

    return once("recorded", run)


def report(folder: Path, cwd: Path) -> Result:
    done = subprocess.run(
        [PACELINE, "report", folder], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=150
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_a_record_cut_off_anywhere(recorded, tmp_path):
    folder = Path(shutil.copytree(recorded, tmp_path / "cut"))
    files = [f for f in folder.rglob("*") if f.is_file() and f.suffix in (".bin", ".jsonl")]
    assert len(files) >= 5
    for file in files:
        data = file.read_bytes()
        file.write_bytes(data[: len(data) * 2 // 3 + 1])
    result = report(folder, tmp_path)
    assert result.code == 0, result.err
    assert "verdict" in result.out + result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("pattern", ["ranks/*/meta.json", "launch-*.json", "ranks/*/summary.json", "end-*.json"])
def test_a_file_of_a_record_that_is_garbage(recorded, tmp_path, pattern):
    folder = Path(shutil.copytree(recorded, tmp_path / "bad"))
    for file in folder.glob(pattern):
        file.write_bytes(b'{"half')
    result = report(folder, tmp_path)
    assert result.code == 0, result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("pattern", ["ranks/*/meta.json", "launch-*.json"])
def test_a_record_of_a_newer_schema(recorded, tmp_path, pattern):
    folder = Path(shutil.copytree(recorded, tmp_path / "newer"))
    for file in folder.glob(pattern):
        file.write_text(file.read_text().replace('"schema":1', '"schema":99'))
    assert_refused(report(folder, tmp_path), "schema 99", "pip install -U paceline")


def test_no_record_at_all(tmp_path):
    assert_refused(report(tmp_path / "nothing", tmp_path), "no run")
    (tmp_path / "hollow").mkdir()
    assert_refused(report(tmp_path / "hollow", tmp_path), "contains no run")
