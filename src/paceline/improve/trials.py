"""How is the program run under a recipe, a block of steps at a time, and nothing left of it?

A *player* is the user's command in processes of its own, conducted through a socket (see `child.conducted`): it goes
forward for as many optimizer steps as it is told, then all its processes are stopped (SIGSTOP), loader workers too, so
that the next player has the machine. It ends at a step boundary; in the end everything it started is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.improve import child
from paceline.improve.host import cpu_seconds, host_busy_s, spent
from paceline.improve.recipe import Recipe
from paceline.observe import leftovers
from paceline.observe.supervise import warden, watched_environment
from paceline.record import layout

READY_S = 300.0  # until the first step, at most
_NOWHERE = {  # trackers that write to a service of theirs
    "WANDB_MODE": "disabled",
    "COMET_START_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}
_TAIL = 2000  # characters of what a program that failed wrote last


class TrialFailed(PacelineError):
    """A trial that could not be carried on; the message says why."""


class ProgramOver(TrialFailed):
    """The program came to its own end."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some optimizer steps in a row, as measured."""

    steps: int  # of the slowest rank
    seconds: float
    cpu_s: float  # of all processes of the program
    other_cores: float  # cores that others took meanwhile

    @property
    def step_s(self) -> float:
        """Seconds of one of the steps, on average."""
        return self.seconds / self.steps


class _Link:
    """The line to one rank: JSON, one object a line."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self._received = b""

    def tell(self, **entry: Any) -> None:
        """Say something; who is gone does not hear it, and waiting for the answer will tell."""
        with suppress(OSError):
            self.socket.sendall(json.dumps(entry).encode() + b"\n")

    def receive(self) -> bool:
        """Take what has come; False when nothing will come any more."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        self._received += data
        return bool(data)

    def heard(self) -> dict[str, Any] | None:
        """Return the next thing said, or None when it is not complete."""
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        said: dict[str, Any] = json.loads(line)
        return said


class Player:
    """The program under one recipe."""

    def __init__(
        self, command: Sequence[str], recipe: Recipe, folder: Path, environment: Mapping[str, str], cwd: Path
    ) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._links: list[_Link] = []
        self._stopped = False
        for name in (layout.RANKS_DIR, "workers", "gauges", "scratch"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        place = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-")))
        self._door = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._door.bind(str(place / "conductor"))
        self._door.listen(64)
        variables = watched_environment(folder, {**os.environ, **environment})
        variables |= {
            **child.applied(recipe),
            child.CONDUCTOR: str(place / "conductor"),
            child.SCRATCH: str(folder / "scratch"),
            "TMPDIR": str(place),  # short: what processes share goes through sockets there, whose paths are limited
            "MLFLOW_TRACKING_URI": (folder / "scratch" / "mlflow").as_uri(),
            **_NOWHERE,
        }
        self._launch = variables[leftovers.VARIABLE]
        self._stack.enter_context(warden(self._launch))
        output = self._stack.enter_context((folder / "output.txt").open("wb"))
        self._process = subprocess.Popen(
            list(command),
            env=variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Player:
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
        while len(self._links) < world:
            self._await(self._door, deadline)
            link = _Link(self._door.accept()[0])
            self._links.append(link)
            world = max(1, self._hear(link, deadline)["world"])
        said = self._all_stops(deadline)[0]
        self.pause()
        return said

    def play(self, steps: int, timeout_s: float, *, pause: bool = True) -> Block:
        """Let the program make so many optimizer steps, then stop it again; its workers too, unless it goes on at once.

        Raises:
            ProgramOver: It came to its end before.
            TrialFailed: It hung, or failed.
        """
        self.resume()
        cpu, busy, begun = cpu_seconds(self._processes()), host_busy_s(), time.monotonic()
        for link in self._links:
            link.tell(steps=steps)
        said = self._all_stops(time.monotonic() + timeout_s)
        wall = time.monotonic() - begun
        own = spent(cpu, cpu_seconds(self._processes()))
        others = max(0.0, host_busy_s() - busy - own) / max(wall, 1e-6)
        if pause:
            self.pause()
        seconds = max(one["ended_ns"] - one["begun_ns"] for one in said) / 1e9
        return Block(steps=steps, seconds=seconds, cpu_s=own, other_cores=others)

    def end(self) -> None:
        """End the program at the step boundary at which it stands; its record is whole."""
        self.resume()
        for link in self._links:
            link.tell(end=True)
        deadline = time.monotonic() + 20.0
        while self._process.poll() is None and time.monotonic() < deadline and self._ranks_left():
            time.sleep(0.05)

    def pause(self) -> None:
        """Stop all processes of the program, wherever they are."""
        self._signal(signal.SIGSTOP)
        self._stopped = True

    def resume(self) -> None:
        """Let them go on."""
        if self._stopped:
            self._signal(signal.SIGCONT)
            self._stopped = False

    def close(self) -> None:
        """Kill what is left of the program and take away what served it."""
        for _ in range(3):
            self._signal(signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait(timeout=30)
        for link in self._links:
            link.socket.close()
        self._stack.close()

    # -- details -------------------------------------------------------------------------------------

    def _processes(self) -> list[int]:
        return list(leftovers.processes_of(self._launch))

    def _ranks_left(self) -> bool:
        folder = self.folder / layout.RANKS_DIR
        return any(any(folder.glob(f"*-{pid}")) for pid in self._processes())

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _all_stops(self, deadline: float) -> list[dict[str, Any]]:
        """Wait for every rank to stop; return what each said."""
        return [self._hear(link, deadline) for link in self._links]

    def _hear(self, link: _Link, deadline: float) -> dict[str, Any]:
        while (said := link.heard()) is None:
            self._await(link.socket, deadline)
            if not link.receive():
                raise self._over()
        return said

    def _await(self, source: socket.socket, deadline: float) -> None:
        while not select.select([source], [], [], 0.2)[0]:
            if self._process.poll() is not None:
                raise self._over()
            if time.monotonic() > deadline:
                raise TrialFailed(f"it hung: no optimizer step came in time{self._last_words()}")

    def _over(self) -> TrialFailed:
        deadline = time.monotonic() + 20.0
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if code == 0:
            return ProgramOver("the program came to its end")
        return TrialFailed(f"the program ended with code {code}{self._last_words()}")

    def _last_words(self) -> str:
        text = (self.folder / "output.txt").read_bytes()[-_TAIL:].decode(errors="replace").strip()
        return f": {text.splitlines()[-1].strip()}" if text else ""
