"""However tuning ends: is what was found there, and is nothing left, neither going on nor stopped?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli.tune import _claimed_name, _write_recipe
from paceline.core.errors import EnvironmentFault
from paceline.tune.trials.blocks import ProgramFailed, TrialFailed
from paceline.tune.trials.process import TrialProcess

TRAINS = """
import os, signal, subprocess, sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
how = sys.argv[1] if sys.argv[1:] else ""
if how == "starts":
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & exit"])  # an orphan
    subprocess.Popen(["sleep", "1000"], env={})  # whose environment names no trial
if how == "goes on starting":
    subprocess.Popen(["/bin/sh", "-c", "while :; do sleep 1000 & sleep 0.002; done"])
step = 0
while True:
    time.sleep(0.01)
    model(torch.ones(2, 4)).sum().backward()
    step += 1
    if step == 5 and how == "hangs":
        time.sleep(1000)
    if step == 5 and how == "is killed":
        os.killpg(0, signal.SIGKILL)
    if step == 5 and how == "leaves":
        os._exit(3)
    if how == "writes":
        open("checkpoint", "ab").write(bytes(1 << 20))
    optimizer.step()
"""

# Two trial processes, as in a comparison: one is stopped while the other goes on.
CONDUCTS = """
import sys
from pathlib import Path
from paceline.tune.trials.processes import signals_as_interrupt
from paceline.tune.trials.process import TrialProcess
with signals_as_interrupt():
    command, here = [sys.executable, "train.py"], Path.cwd()
    with TrialProcess(command, {}, here / "one", {}, here) as first, \\
            TrialProcess(command, {}, here / "two", {}, here) as second:
        first.begin()
        second.begin()
        print("begun", flush=True)
        second.run_steps(10**6, 600.0)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "conducts.py").write_text(textwrap.dedent(CONDUCTS))
    return tmp_path


def state_of(pid: int) -> str:
    """The letter of a process's state; none when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def all_stand_still(processes: list[int]) -> bool:
    """Say whether none of these runs: stopped, ended, or waiting for one just started (vfork) that was stopped."""
    return {state_of(pid) for pid in processes} <= {"T", "D", "Z", ""}


def processes_below(folder: Path) -> dict[int, str]:
    """The processes whose environment names a trial in a folder: their states."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        state = state_of(int(place.name))
        if state not in ("", "Z") and any(v.startswith(f"PACELINE_WATCH_DIR={folder}".encode()) for v in variables):
            found[int(place.name)] = state
    return found


def comes_true(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return true


def gone(folder: Path) -> bool:
    return comes_true(lambda: not processes_below(folder))


def begun(folder: Path, *command: str, said: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own and wait for what it says."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if said in line:
            return process
        lines.append(line)
    raise AssertionError(f"it never said {said!r}, but:\n{''.join(lines)}")


# -- interrupted, ended, killed ----------------------------------------------------------------------


def test_control_c_before_anything_is_known(folder):
    process = begun(folder, "-m", "paceline", "tune", "train.py", said="measuring the unchanged")
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    assert "interrupted before anything was measured" in process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert gone(folder)
    assert not list((folder / ".paceline" / "tunes").iterdir())


def test_an_interrupted_search_ends_with_its_result(folder):
    process = begun(folder, "-m", "paceline", "tune", "train.py", said="measuring how much")
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert "interrupted; the result contains the changes kept so far" in said
    assert "next: paceline tune train.py  # the search was interrupted" in said
    assert process.returncode == 0
    assert gone(folder)
    assert not list((folder / ".paceline" / "tunes").iterdir())


def test_the_trial_that_was_interrupted_is_in_the_table(folder):
    command = ["-m", "paceline", "tune", "--budget", "240s", "--allow", "numeric", "train.py"]
    process = begun(folder, *command, said="trying")
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert said.count("not tried: interrupted") == 1, said
    assert process.returncode == 0
    assert gone(folder)


@pytest.mark.parametrize("signals", [5 * [signal.SIGINT], [signal.SIGTERM], [signal.SIGKILL]])
def test_no_process_is_left_of_a_race(folder, signals):
    process = begun(folder, "conducts.py", said="begun")
    # A stop is on its way until the process gets the processor once more.
    assert comes_true(lambda: "T" in processes_below(folder).values())
    for number in signals:
        os.kill(process.pid, number)
        time.sleep(0.01)
    process.communicate(timeout=60)
    assert gone(folder), processes_below(folder)
    left = {path.name for path in folder.iterdir() if path.name.startswith("paceline-")}
    assert not left or signals == [signal.SIGKILL]


# -- programs that end otherwise ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "how, kind, words",
    [
        ("hangs", TrialFailed, "its torch optimizer did not make its steps within the time limit"),
        ("is killed", ProgramFailed, "was ended by SIGKILL"),
        ("leaves", ProgramFailed, "ended with code 3"),
    ],
)
def test_a_trial_that_does_not_come_back(folder, how, kind, words):
    with TrialProcess([sys.executable, "train.py", how], {}, folder / "trial", {}, folder) as player:
        player.begin()
        with pytest.raises(kind, match=words):
            player.run_steps(20, 3.0)
    assert gone(folder)


def test_what_a_program_starts_and_writes_goes_with_its_trial(folder):
    with TrialProcess([sys.executable, "train.py", "starts"], {}, folder / "trial", {}, folder) as player:
        player.begin()
        started = player._processes()
        assert len(started) >= 4
        assert comes_true(lambda: all_stand_still(started))  # they take no time from the other either
        assert [state_of(pid) for pid in started].count("T") >= 3  # the shell may end meanwhile
    assert {state_of(pid) for pid in started} <= {"", "Z"}  # whose parent has only not asked yet
    with TrialProcess([sys.executable, "train.py", "writes"], {}, folder / "trial", {}, folder) as player:
        player.begin()
        player.run_steps(5, 60.0)
        assert list((folder / "trial" / "scratch").rglob("checkpoint"))
    assert not list((folder / "trial").rglob("checkpoint"))
    assert not (folder / "checkpoint").exists()


def test_what_is_started_while_it_is_stopped_is_stopped_too(folder):
    with TrialProcess([sys.executable, "train.py", "goes on starting"], {}, folder / "trial", {}, folder) as player:
        player.begin()
        for _ in range(20):
            player.resume()
            time.sleep(0.02)
            player.pause()
            assert comes_true(lambda: all_stand_still(player._processes()), within_s=5.0)


# -- where nothing can be written --------------------------------------------------------------------


def tune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", "tune", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_folder_that_cannot_be_made_is_told_with_the_way_out(folder):
    (folder / ".paceline").write_text("a file")
    done = tune(folder, "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write to .paceline/tunes" in done.stderr
    assert "--dir DIR" in done.stderr


def test_a_command_that_is_not_there(folder):
    done = tune(folder, "--", "no-such-launcher", "train.py")
    assert done.returncode == 2
    assert "command not found: 'no-such-launcher'" in done.stderr
    assert not (folder / ".paceline").exists()


def test_a_trial_that_cannot_begin_is_a_failed_trial(folder):
    (folder / "trial").write_text("a file")
    with pytest.raises(TrialFailed, match="a trial cannot start in .*trial"):
        TrialProcess([sys.executable, "train.py"], {}, folder / "trial", {}, folder)


def test_two_searches_that_end_at_once_do_not_take_each_others_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert [_claimed_name().name for _ in range(3)] == ["recipe.toml", "recipe-2.toml", "recipe-3.toml"]


def test_a_recipe_that_cannot_be_written_is_not_lost(folder):
    written, fault = _write_recipe(folder / "none" / "recipe.toml", {"loader": {"num_workers": 2}})
    assert written is None
    assert isinstance(fault, EnvironmentFault)
