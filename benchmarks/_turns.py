"""Several programs in turn, a second at a time: what the machine does meanwhile falls on all alike.

All are started; one of them goes at any time, and the processes of the others are stopped. A program's clock is the
time in which it went. A sleep goes on while its process is stopped, so slices are long against the waits of a program.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from _clocked import LIMIT_S, LINE, Clocked, RunFailed, check, ended, environment

SLICE_S = 1.0


class _Turn:
    """One program, with a clock that stands while it is stopped."""

    def __init__(self, command: Sequence[str], folder: Path, line: re.Pattern[str]) -> None:
        self._line = line
        self._errors = folder / f"errors-{time.monotonic_ns()}.txt"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor")),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.active: list[tuple[float, float]] = []
        self._lines: list[tuple[float, int, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def go(self, seconds: float) -> bool:
        """Let it go for a while; return whether it has come to its end."""
        begun = time.monotonic()
        self._signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() is None:
            self._signal(signal.SIGSTOP)
        self.active.append((begun, time.monotonic()))
        return self.process.poll() is not None

    def stop(self) -> None:
        """Stop it where it is."""
        self._signal(signal.SIGSTOP)

    def result(self) -> Clocked:
        """Return what it printed, and when on its own clock.

        Raises:
            RunFailed: It failed.
        """
        self._reader.join(10.0)
        check(self.process.returncode, self._errors.read_text())
        return Clocked(
            at_s={step: self._clock(at) for at, step, _ in self._lines},
            losses={step: loss for _, step, loss in self._lines},
            wall_s=sum(end - begin for begin, end in self.active),
        )

    def close(self) -> None:
        """Kill what is left of it."""
        self._signal(signal.SIGKILL)
        ended(self.process)
        self.process.wait()

    def _clock(self, at: float) -> float:
        return sum(max(0.0, min(at, end) - begin) for begin, end in self.active)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            if found := self._line.match(line):
                self._lines.append((time.monotonic(), int(found[1]), found[2]))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            for one in [own, *own.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(number)


def in_turn(
    commands: Mapping[str, Sequence[str]],
    folder: Path,
    limit_s: float = LIMIT_S,
    *,
    line: re.Pattern[str] = LINE,
    slice_s: float = SLICE_S,
) -> dict[str, Clocked]:
    """Run programs in turn, each to its end.

    Args:
        commands: Of each program, by its name.
        folder: Where they run.
        limit_s: Of each, on average.
        line: Of the lines that count: a number, and what is told with it.
        slice_s: Of a turn.

    Raises:
        RunFailed: One of them failed, or took too long.
    """
    begun = time.monotonic()
    turns: dict[str, _Turn] = {}
    try:
        for name, command in commands.items():
            turns[name] = _Turn(command, folder, line)
            turns[name].stop()
        going = dict(turns)
        while going:
            for name in list(going):
                if going[name].go(slice_s):
                    del going[name]
            if time.monotonic() - begun > limit_s * len(commands):
                raise RunFailed(f"{', '.join(going)}: not over after {limit_s:.0f} s each")
        return {name: turn.result() for name, turn in turns.items()}
    finally:
        for turn in turns.values():
            turn.close()
