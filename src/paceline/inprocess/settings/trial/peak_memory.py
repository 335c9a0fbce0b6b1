"""The peak memory of this process since the last reset, and the free memory of its GPUs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_FORGET_PEAK = b"5"  # man 5 proc_pid_clear_refs: reset the peak of the resident size


def begin(torch: Any) -> None:
    """Reset the recorded peak of memory."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # a custom allocator may have no statistics
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(_FORGET_PEAK)


def needed_bytes(torch: Any) -> float | None:
    """Return the peak in bytes since `begin` (the sum over GPUs), or None if the system does not report it."""
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


def used_gpus(torch: Any) -> list[int]:
    """Return the GPUs on which this process has a CUDA context; empty while a graph is captured.

    The call does not create a context on any GPU.
    """
    cuda = torch.cuda
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return []
    used = getattr(torch._C, "_cuda_hasPrimaryContext", lambda index: True)
    return [index for index in range(cuda.device_count()) if used(index)]


def gpu_memory(torch: Any) -> list[tuple[str, int, int]]:
    """Return (UUID, free bytes, total bytes) of each GPU that this process uses."""
    try:
        return [
            (str(torch.cuda.get_device_properties(index).uuid), *torch.cuda.mem_get_info(index))
            for index in used_gpus(torch)
        ]
    except Exception:  # torch, a device or a driver does not report memory: the free memory is unknown
        return []
