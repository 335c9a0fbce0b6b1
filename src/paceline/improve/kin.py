"""Which processes belong to a program? Those that its environment marks, and what they started under another one."""

from __future__ import annotations

import os
from collections.abc import Collection


def kin(session: int, marked: Collection[int]) -> set[int]:
    """Return the processes of a session, those that are marked, and all below both.

    Args:
        session: Its id, the process id of the program's first process.
        marked: Processes that are known to belong.
    """
    table = dict(entry for name in os.listdir("/proc") if name.isdigit() and (entry := _entry(int(name))))
    found = {*marked, *(pid for pid, (_, its_session) in table.items() if its_session == session)}
    while more := {pid for pid, (parent, _) in table.items() if parent in found} - found:
        found |= more
    return found


def _entry(pid: int) -> tuple[int, tuple[int, int]] | None:
    """Return a process with its parent and its session; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
    except OSError:
        return None
    return None if state in (b"Z", b"X") else (pid, (int(parent), int(session)))
