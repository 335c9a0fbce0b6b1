"""Which signals the program has received itself, because they were sent to the whole process group.

A shell's ``kill %1`` and a terminal send a signal to all processes of a group, and some schedulers to all processes of
a job. A process that passes such a signal on delivers it twice, and many programs give up at the second one. A helper
process of the group, in which the signals are blocked and stay pending, shows whether a signal was sent to all. The
module imports only the standard library, and nothing of Paceline.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_AFTER_S = 0.005  # from the arrival of a signal here until it has arrived at all processes of the group


class Witness:
    """A process that sleeps in this process's group. All signals that this thread blocks are blocked in it too."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        command = shutil.which("cat")  # it ends when this process ends, which closes its input
        if command is None or not os.path.exists("/proc/self/status"):
            return
        with suppress(OSError):  # the process limit is reached
            self._process = subprocess.Popen(
                [command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
            )

    def has_received(self, number: int) -> bool:
        """Return whether the helper has received a signal too, and forget the signal."""
        if self._process is None:
            return False
        time.sleep(_AFTER_S)
        if not _pending(self._process.pid) >> (number - 1) & 1:
            return False
        self.end()
        self._begin()
        return True

    def end(self) -> None:
        """End the helper."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


@contextmanager
def witness() -> Iterator[Witness]:
    """Yield a `Witness`. The signals in question must be blocked in this thread."""
    found = Witness()
    try:
        yield found
    finally:
        found.end()


def _pending(pid: int) -> int:
    """Return the signals that are pending for a process, as a bit mask; 0 if they are unknown."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("ShdPnd:")), "ShdPnd: 0")
    except OSError:
        return 0
    return int(line.split()[1], 16)


def sent_to_group(witness: Witness, number: int, pid: int) -> bool:
    """Return whether a signal that this process has received was sent to a child in the same group too.

    Args:
        witness: The helper.
        number: The signal.
        pid: The child.
    """
    try:
        same = os.getpgid(pid) == os.getpgrp()
    except OSError:
        return False
    return same and witness.has_received(number)
