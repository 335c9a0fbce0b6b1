"""Readers of /proc for this process and its threads. A value that the kernel does not report is None."""

from __future__ import annotations

import os
import sys
from typing import Any

_NO_FILE = ("RssAnon:", "RssShmem:")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MOST_OPENED = 8  # limit of how often a thread's file is opened
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def thread_times_s(thread_id: int) -> tuple[float, float] | None:
    """Return how many seconds a thread has run on a CPU, and how many it was ready to run but waited for a CPU.

    Both times come from ``schedstat``; the result is None if the kernel does not report them.
    """
    text = _read(f"/proc/self/task/{thread_id}/schedstat")
    if not text:
        return None
    on_cpu, runnable = text.split()[:2]
    return int(on_cpu) / 1e9, int(runnable) / 1e9


class ThreadState:
    """Detects whether a thread of this process runs, without releasing the GIL during the check.

    A thread that computes without the GIL runs while another thread holds it; a thread that executes Python code waits.
    The thread's file stays open, because opening it releases the GIL: a sample would then show the thread where it gets
    the GIL, not where it was.
    """

    def __init__(self) -> None:
        import ctypes  # imported only in processes that train

        self._buffer = ctypes.create_string_buffer(512)
        self._file: int | None = None
        self._opened = 0
        self._read: Any = None
        if sys.platform == "linux":
            self._read = ctypes.PyDLL(None).pread
            self._read.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
            self._read.restype = ctypes.c_ssize_t

    def open(self, thread_id: int) -> None:
        """Open the file of a thread unless it is open."""
        if self._read is None or self._file is not None or self._opened >= _MOST_OPENED:
            return
        self._opened += 1
        try:
            self._file = os.open(f"/proc/self/task/{thread_id}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    def runs(self) -> bool | None:
        """Return whether the thread runs or is ready to run; None if the kernel does not report it."""
        if self._file is None:
            return None
        count = self._read(self._file, self._buffer, len(self._buffer) - 1, 0)
        state = self._buffer.raw[: max(0, count)].rpartition(b")")[2].split()
        if not state or len(state[0]) != 1:
            self._file = None  # the program closed the file, or reuses its descriptor number
            return None
        return state[0] == b"R"


def thread_ids() -> list[int]:
    """Return the native ids of all threads of this process."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def resident_bytes() -> float | None:
    """Return the resident memory of this process in bytes."""
    text = _read("/proc/self/statm")
    return float(text.split()[1]) * _PAGE if text else None


def peak_resident_bytes() -> float | None:
    """Return the largest resident memory of this process so far in bytes (``VmHWM``)."""
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    return None


def unshared_bytes() -> float | None:
    """Return the anonymous and shared memory of this process in bytes: resident memory without pages of files.

    The kernel can reread pages of memory-mapped files when needed, so they do not count as growth of the process.
    """
    lines = [line.split() for line in _read("/proc/self/status").splitlines() if line.startswith(_NO_FILE)]
    return 1024.0 * sum(int(line[1]) for line in lines) if len(lines) == len(_NO_FILE) else None


def minor_faults() -> float | None:
    """Return how often this process has written to a page of memory that it did not have yet, or None."""
    fields = _read("/proc/self/stat").rpartition(")")[2].split()
    return float(fields[7]) if len(fields) > 7 else None


def input_counters(thread_id: int | None = None) -> dict[str, float | None]:
    """Return what this process or one of its threads has read: calls, requested bytes and bytes from storage."""
    path = "/proc/self/io" if thread_id is None else f"/proc/self/task/{thread_id}/io"
    lines = _read(path).splitlines()
    found = dict(line.split(": ") for line in lines if ": " in line)
    names = {"read_calls": "syscr", "asked_bytes": "rchar", "read_bytes": "read_bytes"}
    return {ours: float(found[theirs]) if theirs in found else None for ours, theirs in names.items()}


def started_unix_s() -> float | None:
    """Return the start time of this process in seconds since 1970."""
    stat = _read("/proc/self/stat")
    uptime = _read("/proc/uptime")
    if not stat or not uptime:
        return None
    import time

    since_boot = int(stat.rpartition(")")[2].split()[19]) / _TICKS
    return time.time() - float(uptime.split()[0]) + since_boot


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
