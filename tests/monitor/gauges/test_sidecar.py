"""The sidecar in real processes: it ends with its parent and leaves no trace but its lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.hardware.operating_system import LocalFiles
from paceline.monitor.gauges.tree import read_process

SRC = str(Path(__file__).parents[3] / "src")


def sidecar(run_dir, parent, **options):
    environment = {**os.environ, "PYTHONPATH": SRC}
    command = [sys.executable, "-m", "paceline.monitor.gauges", str(run_dir), "--parent", str(parent)]
    return subprocess.Popen(command, env=environment, **options)


def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def lines(run_dir):
    return [json.loads(line) for file in run_dir.glob("gauges/*.jsonl") for line in file.read_text().splitlines()]


@pytest.fixture
def parent():
    process = sleeper()
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_it_ends_when_the_parent_is_killed(tmp_path, parent, reaped):
    beside = sidecar(tmp_path, parent.pid)
    until(lambda: len(lines(tmp_path)) >= 2)
    parent.kill()
    if reaped:
        parent.wait()
    began = time.monotonic()
    assert beside.wait(30) == 0
    assert time.monotonic() - began < 2.5  # 2 s, and some for a busy machine
    written = lines(tmp_path)
    assert written[0]["kind"] == "header"
    assert {each["kind"] for each in written[1:]} == {"host"}


def test_ctrl_c_and_a_lost_terminal_are_the_programs_affair(tmp_path, parent):
    beside = sidecar(tmp_path, parent.pid)
    until(lambda: lines(tmp_path))
    beside.send_signal(signal.SIGINT)
    beside.send_signal(signal.SIGHUP)
    time.sleep(0.7)
    assert beside.poll() is None
    beside.terminate()
    assert beside.wait(30) == 0


def test_a_parent_that_is_not_there(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert sidecar(tmp_path, gone.pid).wait(60) == 0
    assert lines(tmp_path) == []


def test_it_says_nothing_and_holds_no_pipe(tmp_path, parent):
    beside = sidecar(tmp_path, parent.pid, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: lines(tmp_path))
    assert beside.stdout.read() == b""  # the end of the pipe, though the sidecar still runs
    assert beside.poll() is None
    beside.terminate()
    beside.wait(30)


def test_a_folder_that_cannot_be_written_harms_nobody(parent):
    beside = sidecar("/proc/1/run", parent.pid)
    time.sleep(1.5)
    parent.kill()
    assert beside.wait(30) == 0


def test_the_second_of_a_host_takes_over_from_the_first(tmp_path):
    first_parent, second_parent = sleeper(), sleeper()
    first = sidecar(tmp_path, first_parent.pid)
    until(lambda: lines(tmp_path))
    second = sidecar(tmp_path, second_parent.pid)
    try:
        time.sleep(1.0)
        assert [each["kind"] for each in lines(tmp_path)].count("header") == 1
        first_parent.kill()
        first_parent.wait()
        assert first.wait(30) == 0
        until(lambda: [each["kind"] for each in lines(tmp_path)].count("header") == 2, 30)
    finally:
        second_parent.kill()
        second_parent.wait()
    assert second.wait(30) == 0


def test_a_usage_error_is_told():
    done = subprocess.run(
        [sys.executable, "-m", "paceline.monitor.gauges"], env={**os.environ, "PYTHONPATH": SRC}, capture_output=True
    )
    assert done.returncode == 2
    assert b"RUN_DIR" in done.stderr


def test_it_dies_with_a_parent_that_started_it(tmp_path):
    """As a program would have it: the sidecar is a child of the process that it watches."""
    code = (
        "import os, subprocess, sys, time\n"
        "command = [sys.executable, '-m', 'paceline.monitor.gauges', sys.argv[1], '--parent', str(os.getpid())]\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        "time.sleep(120)\n"
    )
    environment = {**os.environ, "PYTHONPATH": SRC}
    command = [sys.executable, "-c", code, str(tmp_path)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    pid = int(program.stdout.readline())
    until(lambda: len(lines(tmp_path)) >= 2)
    program.kill()
    program.wait()
    until(lambda: (now := read_process(LocalFiles(), pid)) is None or now.state == "Z", 2.5)
