"""The program under a recipe, in processes that run one block of steps at a time.

A socket controls the steps of the program (the other end is in the user's process): it makes the given number of
optimizer steps, then all its processes are stopped (SIGSTOP), loader workers too, so that the next process has the
machine. The program ends at a step boundary, and everything that it started is killed.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from paceline.core.recipe import Recipe
from paceline.hardware.host import host_busy_s
from paceline.inprocess import settings
from paceline.inprocess.sandbox import ports
from paceline.monitor import orphan_reaper
from paceline.monitor.supervision import oom_kills, startable, warden, watched_environment
from paceline.record import layout
from paceline.tune.trials.blocks import ProgramFailed, ProgramOver, StepBlock, TrialFailed, sum_of_known
from paceline.tune.trials.gpus import GpuSampler
from paceline.tune.trials.isolation import (
    IN_PYTHON,
    Isolation,
    remove_shared_memory,
    remove_tree,
    shared_memory,
    shared_memory_of,
)
from paceline.tune.trials.processes import (
    cpu_seconds,
    cpu_seconds_between,
    memory_bytes_of,
    program_processes,
    signals_deferred,
)

T = TypeVar("T")
READY_S = 300.0  # until the first step, at most
_FULL_BYTES = 1 << 20  # a disk with less than this left
_LISTINGS = 5  # of processes to stop: what is started between the first and the signal is in the second
_KILLED_S = 10.0  # until what was killed is gone, at most
_TAIL = 8000  # bytes of the output that are read
_ASKED = "; in a trial, the standard input of the program is empty: pass the answers as options of the program instead"
_TELLING = re.compile(r"\W*(rank\d+\W+)?[\w.]+(Error|Exception|Exit)(: \S.*)?$")  # and not a launcher's summary
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INSTALLED = re.compile(r"^<|/(site|dist)-packages/|/lib/python\d")


def _mean_over_ranks(said: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean over ranks of what they said; None when one of them does not know."""
    total = sum_of_known([one.get(key) for one in said])
    return None if total is None else total / len(said)


class TrialProcess:
    """The program under one recipe, in processes of its own."""

    def __init__(
        self,
        command: Sequence[str],
        recipe: Recipe,
        folder: Path,
        environment: Mapping[str, str],
        cwd: Path,
        isolation: Isolation = IN_PYTHON,
    ) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._connections: list[RankConnection] = []
        self._rank_pids: set[int] = set()
        self._stopped = False
        self._stopped_processes: list[
            psutil.Process
        ] = []  # processes that were stopped last; psutil knows if an id was reused
        self._started_block: tuple[int, dict[int, float], float, float] | None = None
        self._oom_kills = oom_kills()
        self.gpus = GpuSampler()
        self._isolation = isolation
        self._shared_memory = shared_memory()
        with signals_deferred():
            try:
                self._process = self._start(command, recipe, environment, cwd)
            except OSError as error:
                self._stack.close()
                raise TrialFailed(f"a trial cannot start in {folder}: {error.strerror or error}") from error
            except BaseException:
                self._stack.close()
                raise

    def _start(
        self, command: Sequence[str], recipe: Recipe, environment: Mapping[str, str], cwd: Path
    ) -> subprocess.Popen[bytes]:
        """Start the program; what has to be taken away in the end is on the stack."""
        folder = self.folder
        self._stack.callback(remove_tree, folder / "scratch")  # it may be gigabytes
        for name in (layout.RANKS_DIR, "workers", "gauges", "scratch"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)
        place = Path(self._stack.enter_context(temporary))
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(place / "conductor"))
        self._listener.listen(64)
        variables = watched_environment(folder, {**os.environ, **environment})
        variables |= {
            **settings.applied(recipe),
            settings.CONDUCTOR: str(place / "conductor"),
            **self._isolation.variables(folder),
            ports.PORTS: str(place / "ports"),
            "TMPDIR": str(place),  # short: what processes share goes through sockets there, whose paths are limited
        }
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.parent / "inductor"))  # trials compile the same
        self._launch = variables[orphan_reaper.VARIABLE]
        self._stack.enter_context(warden(self._launch))
        output = self._stack.enter_context((folder / "output.txt").open("wb"))
        with startable(command):
            return subprocess.Popen(
                self._isolation.command(command, folder, place, self._stack),
                env=variables,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- going forward -------------------------------------------------------------------------------

    def begin(self, timeout_s: float = READY_S) -> dict[str, Any]:
        """Wait until every rank has made its first optimizer step. Returns what the first rank said there.

        Raises:
            TrialFailed: The program ended or hung before that.
        """
        deadline, world = time.monotonic() + timeout_s, 1
        try:
            while len(self._connections) < world:
                self._wait_for(self._listener, deadline)
                link = RankConnection(self._listener.accept()[0])
                self._connections.append(link)
                hello = self._receive_message(link, deadline)
                self._rank_pids.add(hello["pid"])
                world = max(1, hello["world"])
            said = self._wait_for_all_ranks(deadline)[0]
        except ProgramOver as error:
            raise ProgramOver("the program ended before the first step of a torch optimizer") from error
        self.pause()
        return said

    def run_steps(self, steps: int, timeout_s: float, *, pause: bool = True) -> StepBlock:
        """Let the program make so many optimizer steps, then stop it again; its workers too, unless it goes on at once.

        Raises:
            ProgramOver: It came to its end before.
            TrialFailed: It hung, or failed.
        """
        self.go(steps)
        return self.arrive(timeout_s, pause=pause)

    def go(self, steps: int) -> None:
        """Let the program go on for so many optimizer steps; `arrive` waits for it."""
        self.gpus.begin()
        self._started_block = steps, cpu_seconds(self._processes()), host_busy_s(), time.monotonic()
        for link in self._connections:
            link.send(steps=steps)
        self.resume()  # last: workers that run earlier would fill their queue

    def arrive(self, timeout_s: float, *, pause: bool = True) -> StepBlock:
        """Wait until the program has made the steps it was let go for; otherwise like `run_steps`."""
        assert self._started_block is not None  # it was let go
        steps, cpu, busy, begun = self._started_block
        said = self._wait_for_all_ranks(time.monotonic() + timeout_s)
        wall = time.monotonic() - begun
        if pause:
            self._signal_stopped(signal.SIGSTOP)  # at once: workers would fill their queue while others are listed
        gpu = self.gpus.end()
        own = cpu_seconds_between(cpu, cpu_seconds(self._processes()))
        others = max(0.0, host_busy_s() - busy - own) / max(wall, 1e-6)
        if pause:
            self.pause()
        seconds = max(one["ended_ns"] - one["begun_ns"] for one in said) / 1e9
        return StepBlock(
            steps=steps,
            seconds=seconds,
            cpu_s=own,
            other_cores=others,
            peak_bytes=sum_of_known([one.get("peak_bytes") for one in said]),
            from_queue=_mean_over_ranks(said, "from_queue"),
            queued=_mean_over_ranks(said, "queued"),
            gpu=gpu,
        )

    @property
    def last_steps(self) -> int:
        """Steps that it was let go for last; one if it was not yet."""
        return self._started_block[0] if self._started_block is not None else 1

    @property
    def has_failed(self) -> bool:
        """Whether the program has ended by a fault."""
        return bool(self._process.poll())

    def memory_bytes(self) -> int:
        """Return the memory that its processes need now; what they share counts once."""
        return memory_bytes_of(self._processes())

    def end(self) -> None:
        """End the program at the step boundary at which it stands; its record is whole."""
        self.resume()
        for link in self._connections:
            link.send(end=True)
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline and not self._rank_pids.isdisjoint(self._processes()):
            time.sleep(0.05)

    def pause(self) -> None:
        """Stop all processes of the program, wherever they are, and what these started meanwhile."""
        stopped: set[int] = set()
        for _ in range(_LISTINGS):
            new = set(self._processes()) - stopped
            self._signal(signal.SIGSTOP, new)
            stopped |= new
            if not new:
                break
        self._stopped, self._stopped_processes = True, [known for pid in stopped for known in _open_process(pid)]

    def resume(self) -> None:
        """Let them go on."""
        if self._stopped:
            self._signal_stopped(signal.SIGCONT)
            self._stopped = False

    def close(self) -> None:
        """Kill what is left of the program and take away what served it."""
        with signals_deferred():
            deadline = time.monotonic() + _KILLED_S
            shared: set[str] = set()
            while (left := self._processes()) and time.monotonic() < deadline:
                shared |= shared_memory_of(left) if not self._isolation.by_kernel else set()
                self._signal(signal.SIGKILL, left)
                time.sleep(0.02)
            remove_shared_memory(shared - self._shared_memory)
            with suppress(subprocess.TimeoutExpired):  # in an uninterruptible sleep: more cannot be done
                self._process.wait(timeout=_KILLED_S)
            for link in self._connections:
                link.socket.close()
            self._stack.close()

    # -- details -------------------------------------------------------------------------------------

    def _processes(self) -> list[int]:
        return list(program_processes(self._process.pid, orphan_reaper.processes_of(self._launch)))

    def _signal(self, number: signal.Signals, processes: Iterable[int]) -> None:
        for pid in processes:
            with suppress(OSError):  # gone, or not ours to stop
                os.kill(pid, number)

    def _signal_stopped(self, number: signal.Signals) -> None:
        for process in self._stopped_processes:
            with suppress(psutil.Error):  # gone, or its id belongs to another process by now
                process.send_signal(number)

    def _wait_for_all_ranks(self, deadline: float) -> list[dict[str, Any]]:
        """Wait until every rank has stopped; return their messages."""
        said = [self._receive_message(link, deadline) for link in self._connections]
        self.gpus.heard(said)
        return said

    def _receive_message(self, link: RankConnection, deadline: float) -> dict[str, Any]:
        while (said := link.next_message()) is None:
            self._wait_for(link.socket, deadline)
            if not link.receive():
                raise self._end_error()
        return said

    def _wait_for(self, source: socket.socket, deadline: float) -> None:
        while not select.select([source], [], [], 0.2)[0]:
            self.gpus.sample()
            if self._process.poll() is not None:
                raise self._end_error()
            if time.monotonic() > deadline:
                raise TrialFailed(
                    f"the program hung: its torch optimizer made no step within the time limit{last_error(self.folder)}"
                )

    def _end_error(self) -> TrialFailed:
        deadline = time.monotonic() + 20.0
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if code == 0:
            return ProgramOver("the program ended")
        return ProgramFailed(f"the program {_exit_text(code)}{self._exhausted_resources()}{last_error(self.folder)}")

    def _exhausted_resources(self) -> str:
        """Return the resource that ran out, as text; empty if none is known."""
        memory = (
            ", and the operating system killed a process because memory was full"
            if oom_kills() != self._oom_kills
            else ""
        )
        disk = f", and the disk of {self.folder} is full" if shutil.disk_usage(self.folder).free < _FULL_BYTES else ""
        return memory + disk


def _open_process(pid: int) -> list[psutil.Process]:
    """Return a process by its id; nothing if it is gone."""
    try:
        return [psutil.Process(pid)]
    except psutil.Error:
        return []


def _exit_text(code: int | None) -> str:
    if code is None:
        return "continued after one of its training processes had ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class RankConnection:
    """The connection to one rank of a trial: JSON, one object a line, over a socket."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self._received = b""

    def send(self, **entry: Any) -> None:
        """Send a message. If the rank is gone, waiting for its answer fails."""
        with suppress(OSError):
            self.socket.sendall(json.dumps(entry).encode() + b"\n")

    def receive(self) -> bool:
        """Receive available data; return False if the connection is closed."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        self._received += data
        return bool(data)

    def next_message(self) -> dict[str, Any] | None:
        """Return the next message; None if it is not complete."""
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        said: dict[str, Any] = json.loads(line)
        return said


def last_error(folder: Path) -> str:
    """Return ``: `` and the last error in the output of a program, or its last line; empty if it printed nothing.

    Args:
        folder: The folder of its trial.
    """
    with (folder / "output.txt").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    telling = [number for number, line in enumerate(lines) if _TELLING.match(line)]
    if not lines:
        return ""
    last = lines[telling[-1]] if telling else lines[-1]
    place = _source_line(lines[: telling[-1]]) if telling else ""
    return f": {last}{place}{_ASKED if last.startswith('EOFError') else ''}"


def _source_line(before: Sequence[str]) -> str:
    """Return the last line of a traceback that is in no installed package, as `` (train.py:47)``."""
    frames = [found for line in before if (found := _FRAME.search(line)) is not None]
    own = [frame for frame in frames if not _INSTALLED.search(frame[1])]
    return f" ({Path(own[-1][1]).name}:{own[-1][2]})" if own else ""
