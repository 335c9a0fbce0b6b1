"""Whole commands, run as a user runs them. What several tests look at is run once, whichever of pytest's processes asks
for it first."""

from __future__ import annotations

import fcntl
import os
import pickle
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.explain.diagnose import diagnose
from paceline.explain.model import Diagnosis
from paceline.record.read import read_run
from paceline.record.run import Run

PROGRAMS = Path(__file__).parent / "programs"
# Another build of paceline can be put to the test by naming its command.
PACELINE = os.environ.get("E2E_PACELINE", str(Path(sys.executable).with_name("paceline")))
TIMEOUT_S = 150


def environment(**extra: str) -> dict[str, str]:
    """The tests' own environment without settings of ours, with one thread for OpenMP: this machine has few cores."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("PACELINE_", "PYTHON", "PYTEST", "OMP_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), ours.get("PATH", os.defpath)])
    return {**ours, "PATH": path, "OMP_NUM_THREADS": "1", **extra}


@dataclass(frozen=True)
class Result:
    """How a command ended, what it printed, and the folder of its run if it was watched."""

    code: int
    out: str
    err: str
    folder: Path | None = None

    @property
    def ours(self) -> list[str]:
        """The lines of stderr that are ours."""
        return [line for line in self.err.splitlines() if line.startswith("paceline: ")]

    @property
    def theirs(self) -> list[str]:
        """The lines of stderr that are the program's."""
        return [line for line in self.err.splitlines() if not line.startswith("paceline: ")]

    @property
    def run(self) -> Run:
        assert self.folder is not None
        return read_run(self.folder)

    @property
    def diagnosis(self) -> Diagnosis:
        return diagnose(self.run)


def bare(arguments: Sequence[str], cwd: Path, **options: Any) -> Result:
    """Run `python arguments...` without us."""
    return _finished([sys.executable, *map(str, arguments)], cwd, **options)


def watched(arguments: Sequence[str], cwd: Path, options: Sequence[str] = (), **more: Any) -> Result:
    """Run `paceline run arguments...`; its run is kept under `cwd`."""
    return _finished([PACELINE, "run", "--dir", "runs", *options, *map(str, arguments)], cwd, **more)


def _finished(command: list[str], cwd: Path, stdin: str = "", **variables: str) -> Result:
    done = subprocess.run(
        command, cwd=cwd, env=environment(**variables), input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    return Result(done.returncode, done.stdout, done.stderr, only_run(cwd))


def only_run(cwd: Path) -> Path | None:
    """The newest run kept under a folder."""
    return max((cwd / "runs").glob("*"), key=lambda path: path.name, default=None)


class Going:
    """A watched program that is still running."""

    def __init__(self, arguments: Sequence[str], cwd: Path, *, terminal: bool = False, **variables: str) -> None:
        command = [PACELINE, "run", "--dir", "runs", *map(str, arguments)]
        self.cwd = cwd
        self._terminal: int | None = None
        settings: dict[str, Any] = {"cwd": cwd, "env": environment(**variables)}
        if terminal:
            self._terminal, other = pty.openpty()
            settings |= {"stdin": other, "stdout": other, "stderr": other, "preexec_fn": lambda: take(other)}
        else:
            self._files = [open(cwd / name, "w+") for name in ("out", "err")]  # noqa: SIM115
            settings |= {"stdout": self._files[0], "stderr": self._files[1], "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, start_new_session=True, **settings)
        self.seen = ""

    def until(self, text: str) -> None:
        """Wait until the program has printed something."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.output() and time.monotonic() < deadline:
            assert self.process.poll() is None or text in self.output(), self.output() + self.errors()
            time.sleep(0.05)
        assert text in self.output()

    def until_steps(self, count: int) -> None:
        """Wait until so many steps are on disk."""
        deadline = time.monotonic() + TIMEOUT_S
        while steps_in(self.cwd) < count and time.monotonic() < deadline:
            assert self.process.poll() is None, self.output() + self.errors()
            time.sleep(0.05)
        assert steps_in(self.cwd) >= count

    def type(self, keys: bytes) -> None:
        """Press keys at its terminal."""
        assert self._terminal is not None
        os.write(self._terminal, keys)

    def output(self) -> str:
        if self._terminal is None:
            return (self.cwd / "out").read_text()
        while select.select([self._terminal], [], [], 0)[0]:
            try:
                self.seen += os.read(self._terminal, 65536).decode()
            except OSError:  # what a terminal says once nobody is at its other end
                break
        return self.seen

    def errors(self) -> str:
        return "" if self._terminal is not None else (self.cwd / "err").read_text()

    def end(self) -> Result:
        """Wait for its end."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.output()
            time.sleep(0.05)
        code = self.process.wait(timeout=1)
        return Result(code, self.output(), self.errors(), only_run(self.cwd))

    def processes(self) -> dict[int, str]:
        """Everything that is alive and belongs to the run, by process id: the command line."""
        return processes_of(self.cwd)


def take(terminal: int) -> None:
    """Make a terminal the one that controls this process."""
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def steps_in(cwd: Path) -> int:
    folder = only_run(cwd)
    return sum(len(rank.steps) for rank in read_run(folder).ranks) if folder and any(folder.glob("*.json")) else 0


def processes_of(cwd: Path) -> dict[int, str]:
    """Processes whose environment names a run under this folder, zombies apart."""
    mark = f"PACELINE_WATCH_DIR={cwd.resolve()}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            belongs = any(v.startswith(mark) for v in (folder / "environ").read_bytes().split(b"\0"))
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if belongs and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def gone(cwd: Path, within_s: float = 60.0) -> bool:
    """Say whether all processes of a run end in time (the time is generous: machines are slow)."""
    deadline = time.monotonic() + within_s
    while processes_of(cwd) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not processes_of(cwd)


@pytest.fixture
def going(tmp_path: Path):
    """Start watched programs; what is left of them at the end of the test is killed."""
    started: list[Going] = []

    def start(*arguments: Any, **options: Any) -> Going:
        started.append(Going(list(map(str, arguments)), tmp_path, **options))
        return started[-1]

    yield start
    for each in started:
        for pid in [*processes_of(each.cwd), each.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        each.process.wait()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str):
    """Do a thing once for all of pytest's processes: ``once(name, function)`` gives what the function returned."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent

    def get(name: str, do: Callable[[Path], Any]) -> Any:
        folder = shared / f"once-{name}"
        folder.mkdir(exist_ok=True)
        kept = folder / "result.pickle"
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                shutil.rmtree(folder / "work", ignore_errors=True)  # of a try that failed
                (folder / "work").mkdir()
                kept.write_bytes(pickle.dumps(do(folder / "work")))
        return pickle.loads(kept.read_bytes())

    return get


@pytest.fixture
def script(tmp_path: Path):
    """Write a program beside which its run will be kept."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
