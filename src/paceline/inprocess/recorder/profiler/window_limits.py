"""Bounds of an open profiler window. It records every operator until a step ends, and an evaluation may come first.

The recorder looks at the clock and at the resident memory every 20 ms. Memory is compared with the peak of the process
before the window: within a step a program allocates and frees its activations, which are not the profiler's. Only the
thread that opened the profiler can close it: at its next moment, or, if it is the main thread, between two of its
bytecodes (`Py_AddPendingCall`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter_ns

from paceline.inprocess.recorder import process

MOST_BYTES = 256 << 20  # some 500 bytes for each operator, as much again at the end, and a heap that is cut into pieces
_LEAST_S = 1.0
_TIMES_EXPECTED = 3.0

_Call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Limits:
    """The deadline and the memory limit of one window."""

    def __init__(self, expected_s: float) -> None:
        """Begin.

        Args:
            expected_s: How long the steps that are profiled usually take together.
        """
        self._most_s = _LEAST_S + _TIMES_EXPECTED * expected_s
        self._begun_ns = perf_counter_ns()
        self._peak = process.peak_resident_bytes() or process.resident_bytes()

    def exceeded(self) -> str | None:
        """Return which limit is exceeded, in words; None while the window may stay open."""
        open_s = (perf_counter_ns() - self._begun_ns) / 1e9
        if open_s > self._most_s:
            return f"no step ended for {open_s:.1f} s"
        resident = process.resident_bytes()
        if resident is not None and self._peak is not None and resident - self._peak > MOST_BYTES:
            grown = f"{(resident - self._peak) / (1 << 20):.0f} MiB above its peak before the window"
            return f"memory grew to {grown} within {open_s:.1f} s"
        return None


class MainThreadCall:
    """Has the main thread call a function between two of its bytecodes, as soon as it runs Python."""

    def __init__(self, action: Callable[[], None]) -> None:
        """Prepare. `action` must not raise."""

        def call(_: int | None) -> int:
            action()
            return 0

        self._call = _Call(call)  # lives as long as this object: the interpreter holds its address only

    def ask(self) -> None:
        """Ask for one call. If too many calls of others wait, nothing happens."""
        ctypes.pythonapi.Py_AddPendingCall(self._call, None)
