"""What does the device of this process say of itself? Readings that never synchronise and never start a device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from paceline.inprocess.gpu_detection import has_gpu
from paceline.inprocess.recorder.device import precision
from paceline.inprocess.recorder.device.cuda_events import CudaEvents
from paceline.inprocess.recorder.device.timing import cuda_timing
from paceline.inprocess.recorder.steps import optimizers

_NAN = float("nan")
_FRESH_S = 0.015


class CpuDevice:
    """Readings if the CPU is the device, which has no memory of its own."""

    kind = "cpu"

    def describe(self) -> dict[str, Any]:
        """Return what the meta file says of the device."""
        return {"device": "cpu", "device_name": None}

    def timing(self, write: Any, before_capture: Any) -> None:
        """Return None: the host's times are the device's."""

    def allocated_bytes(self) -> float:
        """Return the bytes allocated now."""
        return _NAN

    def memory(self) -> tuple[float, float, float, float]:
        """Return allocated, reserved and peak bytes, and the number of allocation retries."""
        return (_NAN, _NAN, _NAN, _NAN)


class CudaDevice:
    """One CUDA device, through torch's caching allocator (its counters are kept on the host).

    The recorder asks, and "the current device" is a matter of each thread: the one that counts is the one that
    events are recorded on.
    """

    kind = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.events = CudaEvents(torch)
        self._used = False
        self._bytes: tuple[float, float] = (0.0, _NAN)  # until when it holds, bytes allocated
        self._unread: str | None = None  # why memory is not read: a pluggable allocator counts nothing

    def _in_use(self) -> bool:
        """Whether the program keeps tensors on the device; before it does, it trains on the CPU for all we know."""
        if not self._used and self.events.index is not None:
            reserved = self._asked(self._torch.cuda.memory_reserved)
            self._used = self._trained_there() if reserved is None else bool(reserved > 0)
        return self._used

    def _asked(self, question: Callable[[int | None], Any]) -> Any:
        """Return what the allocator answers for the device; None if it refuses, and then it is not asked again."""
        if self._unread is not None:
            return None
        try:
            return question(self.events.index)
        except Exception as error:
            self._unread = f"the allocator of the program keeps no statistics ({type(error).__name__}: {error})"[:300]
            return None

    def _trained_there(self) -> bool:
        """Whether a loss or the parameters of an optimizer are on the device, where the allocator does not tell."""
        return self.events.named or any(each["device"] == "cuda" for each in list(optimizers.described.values()))

    def describe(self) -> dict[str, Any]:
        """Return what the meta file says of the device."""
        if not self._in_use():
            return {"device": "cpu", "device_name": None}
        index = self.events.index
        properties = self._torch.cuda.get_device_properties(index)
        return {
            "device": "cuda",
            "device_index": index,
            "device_name": properties.name,
            "device_total_bytes": properties.total_memory,
            "device_uuid": str(getattr(properties, "uuid", "")),
            "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": self._torch.version.cuda,
            "cuda_graphs": self.events.captured,
            "device_memory_unread": self._unread,
            **precision.describe(self._torch),
        }

    def timing(self, write: Callable[[Any], None], before_capture: Callable[[], None]) -> Any:
        """Return what times moments on this device and hands finished rows to `write`."""
        return cuda_timing(self._torch, self.events, write, before_capture)

    def allocated_bytes(self) -> float:
        """Return the bytes allocated some milliseconds ago at most; the counters are many and cost 50 µs to collect."""
        now = time.monotonic()
        if now >= self._bytes[0] and self._in_use():
            allocated = self._asked(self._torch.cuda.memory_allocated)
            self._bytes = (now + _FRESH_S, _NAN if allocated is None else float(allocated))
        return self._bytes[1]

    def memory(self) -> tuple[float, float, float, float]:
        """Return allocated, reserved and peak bytes, and the number of allocation retries."""
        if not self._in_use():
            return (_NAN, _NAN, _NAN, _NAN)
        stats = self._asked(self._torch.cuda.memory_stats)
        if stats is None:
            return (_NAN, _NAN, _NAN, _NAN)
        return (
            float(stats.get("allocated_bytes.all.current", _NAN)),
            float(stats.get("reserved_bytes.all.current", _NAN)),
            float(stats.get("allocated_bytes.all.peak", _NAN)),
            float(stats.get("num_alloc_retries", _NAN)),
        )


def device_of(torch: Any) -> CpuDevice | CudaDevice:
    """Return the device that training in this process may use."""
    return CudaDevice(torch) if has_gpu(torch) else CpuDevice()
