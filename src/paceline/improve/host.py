"""How much CPU time have some processes had, and how much memory do they need?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """Return the CPU seconds that each of these processes has had so far."""
    return {pid: _of(pid) for pid in pids}


def spent(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU seconds that processes had between two readings; of one that ended meanwhile, nothing is known."""
    return sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in after.items())


def memory_of(pids: Iterable[int]) -> int:
    """Return the bytes of memory that some processes need; what several of them share counts once (PSS)."""
    return sum(_proportional(pid) for pid in pids)


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
