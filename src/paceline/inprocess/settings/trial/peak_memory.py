"""Memory of this process: the most that it needed since it was last asked, and what its GPUs have left."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_FORGET_PEAK = b"5"  # man 5 proc_pid_clear_refs: the peak of the resident size begins anew


def begin(torch: Any) -> None:
    """Begin to look for the largest need."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # an allocator that the program brings may keep no statistics
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(_FORGET_PEAK)


def needed_bytes(torch: Any) -> float | None:
    """Return the most bytes that were needed since then: of GPUs the sum of their peaks; None where nothing tells."""
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
    """Return the GPUs that this process has a context on; none while a graph is captured.

    A GPU without a context of this process is not given one.
    """
    cuda = torch.cuda
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return []
    used = getattr(torch._C, "_cuda_hasPrimaryContext", lambda index: True)
    return [index for index in range(cuda.device_count()) if used(index)]


def gpu_memory(torch: Any) -> list[tuple[str, int, int]]:
    """Return the UUID, the free bytes and all bytes of each GPU that this process uses."""
    try:
        return [
            (str(torch.cuda.get_device_properties(index).uuid), *torch.cuda.mem_get_info(index))
            for index in used_gpus(torch)
        ]
    except Exception:  # a torch, a device or a driver that does not tell: the room is taken to be unknown
        return []
