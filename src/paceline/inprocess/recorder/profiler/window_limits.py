"""Time and memory limits of an open profiler window, which may contain an evaluation before the next step end.

The recorder checks the clock and the resident memory every 20 ms. Memory is compared with the process's peak before the
window, because the program itself allocates and frees activations within a step. Only the thread that opened the
profiler can close it: at its next event, or, for the main thread, between two bytecodes (`Py_AddPendingCall`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter_ns

from paceline.inprocess.recorder import process

MOST_BYTES = 256 << 20  # about 500 bytes per operator, the same again at the end, and heap fragmentation
_LEAST_S = 1.0
_TIMES_EXPECTED = 3.0

_Call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Limits:
    """The time and memory limits of one window."""

    def __init__(self, expected_s: float) -> None:
        """Start the clock and read the peak memory.

        Args:
            expected_s: The usual total duration of the profiled steps, in seconds.
        """
        self._most_s = _LEAST_S + _TIMES_EXPECTED * expected_s
        self._begun_ns = perf_counter_ns()
        self._peak = process.peak_resident_bytes() or process.resident_bytes()

    def exceeded(self) -> str | None:
        """Return a description of the exceeded limit, or None while the window may stay open."""
        open_s = (perf_counter_ns() - self._begun_ns) / 1e9
        if open_s > self._most_s:
            return f"no step ended for {open_s:.1f} s"
        resident = process.resident_bytes()
        if resident is not None and self._peak is not None and resident - self._peak > MOST_BYTES:
            grown = f"{(resident - self._peak) / (1 << 20):.0f} MiB above its peak before the window"
            return f"memory grew to {grown} within {open_s:.1f} s"
        return None


class MainThreadCall:
    """Makes the main thread call a function between two bytecodes, as soon as it runs Python code."""

    def __init__(self, action: Callable[[], None]) -> None:
        """Prepare the call. `action` must not raise."""

        def call(_: int | None) -> int:
            action()
            return 0

        self._call = _Call(call)  # must live as long as this object: the interpreter stores only its address

    def ask(self) -> None:
        """Request one call. The request is dropped if too many calls are pending."""
        ctypes.pythonapi.Py_AddPendingCall(self._call, None)
