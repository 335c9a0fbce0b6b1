"""How much memory has this process needed since it was last asked? On a GPU what was allocated there, else resident."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_FORGET_PEAK = b"5"  # man 5 proc_pid_clear_refs: the peak of the resident size begins anew


def begin(torch: Any) -> None:
    """Begin to look for the largest need."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(_FORGET_PEAK)


def needed_bytes(torch: Any) -> float | None:
    """Return the most bytes that were needed at once since then; None where the kernel does not tell."""
    if torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated())
    try:
        with open("/proc/self/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith(b"VmHWM:")), None)
