"""Which processes of a command are left over, and how are they ended? Gently, from the top, and in the end surely.

A process belongs to a command when its environment names it (``PACELINE_LAUNCH``, inherited from the first process
on), so it is found wherever it has been reparented to. This file is also run as a program of its own, the *warden*:
it waits for the end of its input, and when that comes without a farewell, paceline was killed, and what it had
started is ended in its place. Standard library only, and nothing of ours.
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
    """Return the processes of a command that we may see, with their parents; none on a system without ``/proc``."""
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
    """End processes: SIGTERM to each that has no parent among them, and after the grace SIGKILL to all.

    Args:
        find: Returns those that are left, with their parents.
        told: Processes that have had their SIGTERM already.
        grace_s: How long they may take.
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
            _signal(pid, signal.SIGCONT)  # who is stopped hears of it only when it goes on
        if time.monotonic() >= deadline + grace_s:
            return  # in an uninterruptible sleep: more cannot be done
        time.sleep(_POLL_S)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # gone, or not ours to end


def _state(pid: int) -> tuple[str, int]:
    """Return the state letter and the parent of a process; an empty letter when it is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1])) if len(fields) > 1 else ("", 0)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def watch_over(launch: str) -> None:
    """Be the warden: read pids that the kernel will tell of paceline's end, then the farewell, or its absence."""
    told, _, rest = sys.stdin.buffer.read().partition(b"\n")
    if FAREWELL not in rest:
        end(lambda: processes_of(launch), told={int(told)} if told.isdigit() else ())


if __name__ == "__main__":
    watch_over(sys.argv[1])
