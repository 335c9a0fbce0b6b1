"""The processes of a trial: their ids, CPU time and memory, and the handling of signals that end a trial."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def program_processes(session: int, marked: Collection[int]) -> set[int]:
    """Return the processes of a session, the marked processes, and the descendants of both.

    Args:
        session: The session id, which is the process id of the program's first process.
        marked: Other processes that are known to belong to the trial.
    """
    table = dict(entry for name in os.listdir("/proc") if name.isdigit() and (entry := _parent_and_session(int(name))))
    found = {*marked, *(pid for pid, (_, its_session) in table.items() if its_session == session)}
    while more := {pid for pid, (parent, _) in table.items() if parent in found} - found:
        found |= more
    return found


def _parent_and_session(pid: int) -> tuple[int, tuple[int, int]] | None:
    """Return a process id with its parent and its session, or None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
    except OSError:
        return None
    return None if state in (b"Z", b"X") else (pid, (int(parent), int(session)))


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """Return the CPU seconds that each process has used so far."""
    return {pid: _cpu_seconds_of(pid) for pid in pids}


def cpu_seconds_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU seconds that processes used between two readings. Processes that ended in between are left out."""
    return sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in after.items())


def memory_bytes_of(pids: Iterable[int]) -> int:
    """Return the bytes of memory that some processes need. Memory that several of them share counts once (PSS)."""
    return sum(_shared_once_bytes(pid) for pid in pids)


def _shared_once_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _cpu_seconds_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Return a context manager that handles SIGTERM and SIGHUP like Ctrl-C. Ignored signals stay ignored."""
    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Return a context manager that defers signals to its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles signals
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda n, _: came.append(n))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
