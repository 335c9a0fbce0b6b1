"""However a run ends: does its report say what happened, are its steps there, and is nothing left behind?"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from tests.e2e.conftest import PROGRAMS, Going, Result, gone, watched
from tests.e2e.test_same import free_port

from paceline.explain.comparison import whole_run

ENDLESS = PROGRAMS / "endless.py"
# Promised is that a kill loses one second at most. A busy machine may also be late to give the recorder its turn.
LOST_S = 1.0
BUSY_S = 0.7


def program_of(run: Going) -> int:
    """The process id that the program has told."""
    run.until("going ")
    return int(re.findall(r"going (\d+)", run.output())[0])


def begin(going, *arguments: str, steps: int = 1000, **options) -> Going:
    run = going(ENDLESS, "--times", "times", *arguments, **options)
    program_of(run)
    run.until_steps(steps)
    until_old(run)
    return run


def until_old(run: Going) -> None:
    """Wait until there are steps that a kill must not lose, however fast the machine makes them."""
    deadline = time.monotonic() + 60
    while len(old_steps(run.cwd)) < 100 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert old_steps(run.cwd)


def old_steps(cwd: Path, rank: int = 0) -> list[float]:
    """Return the ends of a rank's steps that are longer ago than what a kill may lose."""
    ends = [float(line) for line in (cwd / f"times{rank}").read_text().splitlines()[:-1] if line.strip()]
    return [end for end in ends if end < ends[-1] - LOST_S - BUSY_S]


def assert_steps_kept(result: Result, cwd: Path, rank: int = 0) -> None:
    """All steps are on disk but those of the last moments."""
    old = len(old_steps(cwd, rank))
    assert old > 0
    assert len(result.run.ranks[rank].steps) >= old


def assert_clean(run: Going, *, said: str, code: int) -> Result:
    result = run.end()
    assert result.code == code, result.err
    assert gone(run.cwd), run.processes()
    assert said in result.diagnosis.ended
    assert "Traceback" not in "".join(result.ours)
    return result


# ------------------------------------------------------------------------------------------- signals


def test_control_c_at_a_terminal(going):
    run = begin(going, "--workers", "1", terminal=True)
    before = termios.tcgetattr(run._terminal)
    run.type(b"\x03")
    result = assert_clean(run, said="interrupted (SIGINT)", code=130)
    assert result.out.count("KeyboardInterrupt") >= 1
    assert "interrupted (SIGINT)" in result.out  # the verdict was printed there too
    assert termios.tcgetattr(run._terminal) == before
    assert_steps_kept(result, run.cwd)


@pytest.mark.parametrize(
    "number, code, said", [(signal.SIGINT, 130, "interrupted (SIGINT)"), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_a_signal_to_paceline_alone_is_passed_on(going, number, code, said):
    run = begin(going, "--workers", "1")
    run.process.send_signal(number)
    result = assert_clean(run, said=said, code=code)
    assert ("KeyboardInterrupt" in result.err) == (number == signal.SIGINT)
    assert_steps_kept(result, run.cwd)


def test_what_is_stopped_and_goes_on_is_as_before(going):
    """As by Ctrl-Z and `fg`, or a batch system that suspends jobs; a signal in between comes after it."""
    run = begin(going, "--workers", "1")
    for _ in range(2):
        pids = [run.process.pid, *run.processes()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    result = assert_clean(run, said="ended by SIGTERM", code=143)
    assert not any("internal error" in line for line in result.ours)


def test_a_program_that_handles_sigterm_decides_itself(going):
    run = begin(going, "--saves")
    run.process.send_signal(signal.SIGTERM)
    result = assert_clean(run, said="exited with code 5 after SIGTERM", code=5)
    assert result.out.endswith("saved\n")


def test_a_program_that_answers_sigterm_with_code_0_did_not_finish(going):
    """As Lightning does."""
    run = begin(going, "--saves", "--code", "0")
    run.process.send_signal(signal.SIGTERM)
    result = assert_clean(run, said="stopped by SIGTERM, with exit code 0", code=0)
    assert whole_run(result.run) is None


COUNTS = """
import os, signal, time, torch

def heard(number, frame):
    os.write(1, b"%d\\n" % number)

signal.signal(signal.SIGTERM, heard)
signal.signal(signal.SIGUSR1, heard)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
until = time.monotonic() + 60
while not os.path.exists("enough") and time.monotonic() < until:
    optimizer.zero_grad()
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    with open("ready", "a"):
        time.sleep(0.01)
"""


@pytest.mark.parametrize("options", [(), ("--layout", "dp=2")], ids=["one process", "two ranks"])
def test_a_signal_to_the_group_and_one_to_paceline_alone_each_arrive_once(tmp_path, options):
    """As by `kill %1` in a shell, or by a scheduler: programs give up at the second signal."""
    (tmp_path / "counts.py").write_text(COUNTS)
    line = [sys.executable, "-m", "paceline", "run", "-q", "--no-profile", *options, "counts.py"]
    run = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        for send in (os.killpg, os.killpg, os.kill, os.killpg):
            send(run.pid, signal.SIGTERM)
            time.sleep(1.0)
        os.killpg(run.pid, signal.SIGTERM)
        os.killpg(run.pid, signal.SIGUSR1)  # before the first one was handled
        time.sleep(1.0)
        (tmp_path / "enough").touch()
        out, _ = run.communicate(timeout=60)
    finally:
        run.kill()
        run.wait()
    assert sorted(map(int, out.split())) == [signal.SIGUSR1, *[signal.SIGTERM] * 5]


# ------------------------------------------------------------------------------------------- kills


def test_kill_9_of_the_program(going):
    run = begin(going, "--workers", "1")
    os.kill(program_of(run), signal.SIGKILL)
    result = assert_clean(run, said="killed (SIGKILL)", code=137)
    assert_steps_kept(result, run.cwd)


def test_kill_9_of_a_loader_worker(going):
    run = begin(going, "--workers", "2")
    (worker, *_) = [w.pid for w in Result(0, "", "", next((run.cwd / "runs").iterdir())).run.workers]
    os.kill(worker, signal.SIGKILL)
    result = assert_clean(run, said="exited with code 1: ", code=1)  # and what the loader raised
    assert_steps_kept(result, run.cwd)


def test_kill_9_of_paceline_itself(going):
    run = begin(going, "--workers", "2")
    assert len(run.processes()) >= 3
    run.process.kill()
    run.process.wait()
    assert gone(run.cwd), run.processes()
    result = Result(137, run.output(), run.errors(), next((run.cwd / "runs").iterdir()))
    assert "Paceline itself was killed" in result.diagnosis.ended
    assert_steps_kept(result, run.cwd)


def test_kill_9_of_paceline_reaches_what_a_shell_has_started(going):
    command = f"{sys.executable} {ENDLESS} & {sys.executable} {ENDLESS} --saves; true"
    run = going("--", "/bin/sh", "-c", command)
    run.until("going")
    run.process.kill()
    run.process.wait()
    assert gone(run.cwd), run.processes()


def by_torchrun(going) -> Going:
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", free_port()]
    run = going("--", sys.executable, "-m", "torch.distributed.run", *where, ENDLESS, "--ranks", "--times", "times")
    run.until_steps(600)
    until_old(run)
    return run


def rank_processes(run: Going) -> list[int]:
    return [rank.pid for rank in Result(0, "", "", next((run.cwd / "runs").iterdir())).run.ranks]


def test_kill_9_of_a_rank(going):
    run = by_torchrun(going)
    os.kill(rank_processes(run)[1], signal.SIGKILL)
    result = assert_clean(run, said="exited with code 1", code=1)
    assert "without a message" in result.diagnosis.ended
    for rank in (0, 1):
        assert_steps_kept(result, run.cwd, rank)


def test_kill_9_of_the_launcher_leaves_no_ranks(going):
    run = by_torchrun(going)
    (launcher,) = [pid for pid, line in run.processes().items() if "torch.distributed.run" in line]
    os.kill(launcher, signal.SIGKILL)
    result = assert_clean(run, said="killed (SIGKILL)", code=137)
    assert "2 of its training processes" in result.err
    assert_steps_kept(result, run.cwd)


# ------------------------------------------------------------------------------------------- memory


def test_a_forked_training_keeps_its_end(tmp_path):
    """Such a process leaves without Python's exit functions."""
    result = watched([PROGRAMS / "forked.py"], tmp_path)
    rank = result.run.ranks[0]
    assert len(rank.steps) == 57
    ends = rank.noted("end")
    assert [(end["exception"], end["message"]) for end in ends] == [("ValueError", "the last batch is empty")]


def test_an_allocation_that_fails(tmp_path):
    result = watched([ENDLESS, "--memory", "limited"], tmp_path)
    assert result.code == 1
    assert "MemoryError" in result.diagnosis.ended
    assert "MemoryError" in result.err


@pytest.fixture
def small_group():
    """A group of processes with little memory, where this machine lets us make one."""
    folder = Path(f"/sys/fs/cgroup/memory/paceline-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text("700000000")
        (folder / "memory.swappiness").write_text("0")
    except OSError as error:
        pytest.skip(f"no memory group can be made here: {error}")
    yield folder
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.1)


def test_a_kill_for_lack_of_memory(small_group, tmp_path):
    enter = f"echo $$ > {small_group}/cgroup.procs; exec {sys.executable} {ENDLESS} --memory eaten"
    result = watched(["--", "/bin/sh", "-c", enter], tmp_path)
    assert result.code == 137
    assert "out of memory" in result.diagnosis.ended
    assert len(result.run.ranks[0].steps) > 0
