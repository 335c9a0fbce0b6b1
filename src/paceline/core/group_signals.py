"""Detects signals that were sent to the whole process group, and that child processes have therefore received too.

``kill %1`` in a shell sends a signal to all processes of a group, and some batch systems to all processes of a job. If
a launcher forwards such a signal, its child receives the signal twice, and many programs abort at the second one.

The kernel does not report which other processes received a signal. Therefore a helper process in the same group blocks
these signals. A signal to the group stays pending in the helper, and ``/proc/PID/status`` lists pending signals.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress

_DELIVERY_S = 0.005  # the kernel signals one process of the group after the other


class GroupMember:
    """The helper process. It blocks the signals that the calling thread blocks, and ends when this process ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._received = 0  # bit mask of signals that `child_received` has still to return
        self._start()

    def _start(self) -> None:
        command = shutil.which("cat")
        if command is None or not os.path.exists("/proc/self/status"):
            return
        with suppress(OSError):  # the process limit is reached
            self._process = subprocess.Popen(
                [command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
            )

    def child_received(self, number: int, child: int) -> bool:
        """Return whether a signal was sent to the whole process group, so that a child has received it too.

        Args:
            number: The signal, which this process has just received.
            child: The process id of the child.
        """
        try:
            in_group = os.getpgid(child) == os.getpgrp()
        except OSError:
            return False
        return in_group and self._take(number)

    def _take(self, number: int) -> bool:
        """Return whether the helper has received a signal. Replace a helper that has received any signal."""
        bit = 1 << (number - 1)
        if self._process is not None and not self._received & bit:
            time.sleep(_DELIVERY_S)
            if pending := _pending(self._process.pid):
                self._received |= pending
                self.close()
                self._start()
        taken = bool(self._received & bit)
        self._received &= ~bit
        return taken

    def close(self) -> None:
        """End the helper."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _pending(pid: int) -> int:
    """Return a bit mask of the signals that are pending for a process; 0 if they are unknown."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("ShdPnd:")), "ShdPnd: 0")
    except OSError:
        return 0
    return int(line.split()[1], 16)
