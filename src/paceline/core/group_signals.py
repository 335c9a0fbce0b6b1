"""Tells whether a signal was sent to the whole process group, so that the children have received it already.

``kill %1`` in a shell sends a signal to all processes of a group, and some batch systems to all processes of a job. If
a launcher forwards such a signal, its child receives the signal twice, and many programs abort at the second one.

The kernel does not tell a process who else received a signal. A helper process in the same group shows it: the helper
blocks these signals, so a signal to the group stays pending there, where ``/proc/PID/status`` lists it.
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
        self._received = 0  # bit mask of signals that earlier helpers had received besides the one in question
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
        """Return whether a child has received a signal itself, because it was sent to the group of this process.

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
        """Return whether a signal is pending in the helper; if so, replace the helper, which cannot forget signals."""
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
