"""Peak memory of this process since the last question: allocated on all GPUs together, or resident without a GPU."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_FORGET_PEAK = b"5"  # man 5 proc_pid_clear_refs: the peak of the resident size begins anew


def begin(torch: Any) -> None:
    """Reset the peak, on all devices: the program need not use the current one."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # a pluggable allocator keeps no statistics
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(_FORGET_PEAK)


def needed_bytes(torch: Any) -> float | None:
    """Return the peak in bytes, with several GPUs the sum; None if kernel or allocator do not tell it."""
    if torch.cuda.is_initialized():
        try:
            return float(sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count()))))
        except RuntimeError:
            return None
    try:
        with open("/proc/self/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith(b"VmHWM:")), None)
