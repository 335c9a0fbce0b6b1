"""The orphan process reaper: it finds and ends the remaining processes of a command.

A process belongs to a command if its environment variable ``PACELINE_LAUNCH`` has the command's id. Children inherit
the variable, so a process is found even after it was reparented. This file also runs as a separate program, the
*warden*. It waits for the end of its input. If the input ends without the farewell byte, Paceline was killed, and the
warden ends the command's processes. It imports only the standard library and nothing of Paceline.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection

VARIABLE = "PACELINE_LAUNCH"
FAREWELL = b"."
GRACE_S = 10.0
_POLL_S = 0.1


def processes_of(launch: str) -> dict[int, int]:
    """Return the visible processes of a command with their parents; empty on a system without ``/proc``."""
    wanted = f"{VARIABLE}={launch}".encode()
    found: dict[int, int] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name.isdigit() and wanted in _read(f"/proc/{name}/environ").split(b"\0"):
            state, parent = _state(int(name))
            if state not in ("Z", "X", ""):
                found[int(name)] = parent
    return found


def end(find: Callable[[], dict[int, int]], told: Collection[int] = (), grace_s: float = GRACE_S) -> None:
    """End processes: send SIGTERM to those whose parent is not among them, and after the grace period SIGKILL to all.

    Args:
        find: Returns the remaining processes with their parents.
        told: Processes that already received SIGTERM.
        grace_s: The grace period in seconds.
    """
    signalled = set(told)
    deadline = time.monotonic() + grace_s
    while left := find():
        late = time.monotonic() >= deadline
        for pid, parent in left.items():
            if late:
                _signal(pid, signal.SIGKILL)
            elif parent not in left and pid not in signalled:
                signalled.add(pid)
                _signal(pid, signal.SIGTERM)
            _signal(pid, signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT
        if time.monotonic() >= deadline + grace_s:
            return  # the process is in an uninterruptible sleep and cannot be ended
        time.sleep(_POLL_S)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # the process has ended, or belongs to another user


def _state(pid: int) -> tuple[str, int]:
    """Return the state letter and the parent of a process; the letter is empty if the process has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1])) if len(fields) > 1 else ("", 0)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def watch_over(launch: str) -> None:
    """Run the warden: wait for the end of stdin, then end the processes of a command if Paceline was killed.

    The first line on stdin is the pid of the program, to which the kernel itself sends SIGTERM when Paceline ends.
    Paceline writes the farewell byte before it ends; if the byte is missing, Paceline was killed.
    """
    told, _, rest = sys.stdin.buffer.read().partition(b"\n")
    if FAREWELL not in rest:
        end(lambda: processes_of(launch), told={int(told)} if told.isdigit() else ())


if __name__ == "__main__":
    watch_over(sys.argv[1])
