"""The program under a recipe, in processes that run one block of steps at a time.

A socket controls the steps of the program; the other end is in the user's process. The program makes the given number
of optimizer steps. Then all its processes, loader workers included, are paused (SIGSTOP), so that the other program of
the comparison has the machine to itself. At the end of the trial, the program ends at a step boundary, and all
processes that it started are killed.
"""

from __future__ import annotations

import json
import math
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
READY_S = 300.0  # most seconds until the first step
_FULL_BYTES = 1 << 20  # a disk with less free space than this is full
# most listings of processes to stop: each finds the processes that started before the last signal arrived
_LISTINGS = 5
_KILLED_S = 10.0  # most seconds until killed processes are gone
_TAIL = 8000  # bytes of the output to read, from its end
_ASKED = "; in a trial, the standard input of the program is empty: pass the answers as options of the program instead"
# matches the line of an exception, not a launcher's summary
_TELLING = re.compile(r"\W*(rank\d+\W+)?[\w.]+(Error|Exception|Exit)(: \S.*)?$")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INSTALLED = re.compile(r"^<|/(site|dist)-packages/|/lib/python\d")


def _mean_over_ranks(said: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean of a value over the messages of all ranks, or None if a rank does not know the value."""
    total = sum_of_known([one.get(key) for one in said])
    return None if total is None else total / len(said)


class TrialProcess:
    """The program under one recipe, running in its own processes."""

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
        # The processes that were stopped last. psutil detects if a process id was reused.
        self._stopped_processes: list[psutil.Process] = []
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
        """Start the program. Everything that is created for it is removed when the trial's `ExitStack` is closed."""
        folder = self.folder
        self._stack.callback(remove_tree, folder / "scratch")  # the folder may contain gigabytes
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
            # a short path: processes communicate through sockets in this folder, and socket paths are limited
            "TMPDIR": str(place),
        }
        # trials share compiled kernels
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.parent / "inductor"))
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
        """Wait until every rank has made one optimizer step, and pause the program. Return the first rank's message.

        Raises:
            TrialFailed: The program ended or hung before its first step.
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
        """Run the program for the given number of optimizer steps and return the measured block.

        Args:
            steps: Number of optimizer steps.
            timeout_s: Time limit in seconds.
            pause: Whether to pause all processes afterwards. Otherwise only the ranks wait, and loader workers
                continue.

        Raises:
            ProgramOver: The program ended before the steps were complete.
            TrialFailed: The program hung or failed.
        """
        self.go(steps)
        return self.arrive(timeout_s, pause=pause)

    def go(self, steps: int) -> None:
        """Tell the program to make the given number of optimizer steps. Do not wait; `arrive` waits for their end."""
        self.gpus.begin()
        self._started_block = steps, cpu_seconds(self._processes()), host_busy_s(), time.monotonic()
        for link in self._connections:
            link.send(steps=steps)
        self.resume()  # after the messages: workers that continue earlier would fill their queue

    def arrive(self, timeout_s: float, *, pause: bool = True) -> StepBlock:
        """Wait until the program has made the steps that `go` started, and return the measured block.

        Arguments and errors are those of `run_steps`.
        """
        assert self._started_block is not None  # set by `go`
        steps, cpu, busy, begun = self._started_block
        said = self._wait_for_all_ranks(time.monotonic() + timeout_s)
        wall = time.monotonic() - begun
        if pause:
            # immediately: workers would fill their queue while new processes are listed
            self._signal_stopped(signal.SIGSTOP)
        gpu = self.gpus.end()
        own = cpu_seconds_between(cpu, cpu_seconds(self._processes()))
        others = min(max(0.0, host_busy_s() - busy - own) / max(wall, 1e-6), os.cpu_count() or math.inf)
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
        """Number of steps of the latest block, or 1 before the first block."""
        return self._started_block[0] if self._started_block is not None else 1

    @property
    def has_failed(self) -> bool:
        """Whether the program has ended with an error."""
        return bool(self._process.poll())

    def memory_bytes(self) -> int:
        """Return the bytes of memory that the processes of the program need. Shared memory counts once."""
        return memory_bytes_of(self._processes())

    def end(self) -> None:
        """End the program at its current step boundary, so that its record is complete."""
        self.resume()
        for link in self._connections:
            link.send(end=True)
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline and not self._rank_pids.isdisjoint(self._processes()):
            time.sleep(0.05)

    def pause(self) -> None:
        """Pause all processes of the program, also processes that are started in the meantime."""
        stopped: set[int] = set()
        for _ in range(_LISTINGS):
            new = set(self._processes()) - stopped
            self._signal(signal.SIGSTOP, new)
            stopped |= new
            if not new:
                break
        self._stopped, self._stopped_processes = True, [known for pid in stopped for known in _open_process(pid)]

    def resume(self) -> None:
        """Let the paused processes continue."""
        if self._stopped:
            self._signal_stopped(signal.SIGCONT)
            self._stopped = False

    def close(self) -> None:
        """Kill all remaining processes of the program, and free the resources of the trial."""
        with signals_deferred():
            deadline = time.monotonic() + _KILLED_S
            shared: set[str] = set()
            while (left := self._processes()) and time.monotonic() < deadline:
                shared |= shared_memory_of(left) if not self._isolation.by_kernel else set()
                self._signal(signal.SIGKILL, left)
                time.sleep(0.02)
            remove_shared_memory(shared - self._shared_memory)
            with suppress(subprocess.TimeoutExpired):  # a process in uninterruptible sleep cannot be killed
                self._process.wait(timeout=_KILLED_S)
            for link in self._connections:
                link.socket.close()
            self._stack.close()

    # -- details -------------------------------------------------------------------------------------

    def _processes(self) -> list[int]:
        return list(program_processes(self._process.pid, orphan_reaper.processes_of(self._launch)))

    def _signal(self, number: signal.Signals, processes: Iterable[int]) -> None:
        for pid in processes:
            with suppress(OSError):  # the process is gone, or this user may not signal it
                os.kill(pid, number)

    def _signal_stopped(self, number: signal.Signals) -> None:
        for process in self._stopped_processes:
            with suppress(psutil.Error):  # the process is gone, or another process has its id by now
                process.send_signal(number)

    def _wait_for_all_ranks(self, deadline: float) -> list[dict[str, Any]]:
        """Wait until every rank has made its steps, and return the messages of the ranks."""
        said = [self._receive_message(link, deadline) for link in self._connections]
        self.gpus.heard(said)
        return said

    def _receive_message(self, link: RankConnection, deadline: float) -> dict[str, Any]:
        while (said := link.next_message()) is None:
            self._wait_for(link.socket, deadline)
            if not link.receive():
                raise self._end_error()
        if "refused" in said:
            raise TrialFailed(str(said["refused"]))
        return said

    def _wait_for(self, source: socket.socket, deadline: float) -> None:
        while not select.select([source], [], [], 0.2)[0]:
            self.gpus.sample()
            if self._process.poll() is not None:
                raise self._end_error()
            if time.monotonic() > deadline:
                raise TrialFailed(
                    "its torch optimizer did not make its steps within the time limit; the program hangs or is much "
                    f"slower with this change{last_error(self.folder)}"
                )

    def _end_error(self) -> TrialFailed:
        deadline = time.monotonic() + 20.0
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if code == 0:
            return ProgramOver("the program ended")
        return ProgramFailed(f"the program {_exit_text(code)}{self._exhausted_resources()}{last_error(self.folder)}")

    def _exhausted_resources(self) -> str:
        """Return text for an error message if memory or disk space ran out, else an empty text."""
        memory = (
            ", and the operating system killed a process because memory was full"
            if oom_kills() != self._oom_kills
            else ""
        )
        disk = f", and the disk of {self.folder} is full" if shutil.disk_usage(self.folder).free < _FULL_BYTES else ""
        return memory + disk


def _open_process(pid: int) -> list[psutil.Process]:
    """Return the process with this id in a list, or an empty list if the process is gone."""
    try:
        return [psutil.Process(pid)]
    except psutil.Error:
        return []


def _exit_text(code: int | None) -> str:
    if code is None:
        return "continued after one of its training processes had ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class RankConnection:
    """The connection to one rank of a trial: JSON over a socket, one object per line."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self._received = b""

    def send(self, **entry: Any) -> None:
        """Send a message. If the rank is gone, no error is raised here, but the next wait for the rank fails."""
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
        """Return the next message, or None if it has not arrived completely."""
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        said: dict[str, Any] = json.loads(line)
        return said


def last_error(folder: Path) -> str:
    """Return ``: `` and the last error in the output of a program; empty if the output is empty.

    Without an error, the last line of the output is used.

    Args:
        folder: The folder of the trial.
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
    """Return the last source line of a traceback outside installed packages, as `` (train.py:47)``; empty if none."""
    frames = [found for line in before if (found := _FRAME.search(line)) is not None]
    own = [frame for frame in frames if not _INSTALLED.search(frame[1])]
    return f" ({Path(own[-1][1]).name}:{own[-1][2]})" if own else ""
