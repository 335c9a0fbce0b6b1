"""Readings of the device that this process uses. They never synchronise and never initialise a device."""

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
    """Readings of a process that trains on the CPU, which has no device memory."""

    kind = "cpu"

    def describe(self) -> dict[str, Any]:
        """Return the entries of the meta file about the device."""
        return {"device": "cpu", "device_name": None}

    def timing(self, write: Any, before_capture: Any) -> None:
        """Return None: the times of the host are those of the device."""

    def allocated_bytes(self) -> float:
        """Return NaN: a CPU has no device memory."""
        return _NAN

    def memory(self) -> tuple[float, float, float, float]:
        """Return allocated, reserved and peak bytes, and the number of allocation retries."""
        return (_NAN, _NAN, _NAN, _NAN)


class CudaDevice:
    """Readings of one CUDA device from torch's caching allocator, whose counters are on the host.

    The recorder's thread calls the methods. The current device is set per thread, so the methods use the device on
    which events are recorded.
    """

    kind = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.events = CudaEvents(torch)
        self._used = False
        self._tensors_on: int | None = None  # the device that holds tensors, while no event has been recorded
        self._bytes: tuple[float, float] = (0.0, _NAN)  # time until which the reading is valid, allocated bytes
        self._unread: str | None = None  # reason if memory is not read: a pluggable allocator has no statistics

    def _in_use(self) -> bool:
        """Whether the program has tensors on the device. Until then, the program is assumed to train on the CPU."""
        if not self._used and self._device_index() is not None:
            reserved = self._asked(self._torch.cuda.memory_reserved)
            self._used = self._trained_there() if reserved is None else bool(reserved > 0)
        return self._used

    def _device_index(self) -> int | None:
        """Return the index of the device with the timing events or, before them, with tensors; None if unknown."""
        return self._tensors_on if self.events.index is None else self.events.index

    def _find_tensors(self) -> None:
        """Find the device that holds tensors: a short program may end before the first event is recorded."""
        if self.events.index is None and self._tensors_on is None and self._unread is None and self.events.ready():
            cuda = self._torch.cuda
            self._tensors_on = next((n for n in range(cuda.device_count()) if self._has_memory_on(n)), None)

    def _has_memory_on(self, index: int) -> bool:
        return bool(self._asked(lambda _: self._torch.cuda.memory_reserved(index)))

    def _asked(self, question: Callable[[int | None], Any]) -> Any:
        """Return a statistic of the allocator; None after the first failure, without further calls."""
        if self._unread is not None:
            return None
        try:
            return question(self._device_index())
        except Exception as error:
            self._unread = f"the allocator of the program keeps no statistics ({type(error).__name__}: {error})"[:300]
            return None

    def _trained_there(self) -> bool:
        """Whether a loss or an optimizer's parameters are on the device; used if the allocator has no statistics."""
        return self.events.named or any(each["device"] == "cuda" for each in list(optimizers.described.values()))

    def describe(self) -> dict[str, Any]:
        """Return the entries of the meta file about the device."""
        self._find_tensors()
        if not self._in_use():
            return {"device": "cpu", "device_name": None}
        index = self._device_index()
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
        """Return the timing object, which times events on this device and passes finished rows to `write`."""
        return cuda_timing(self._torch, self.events, write, before_capture)

    def allocated_bytes(self) -> float:
        """Return the allocated bytes, at most 15 ms old: collecting the allocator's counters takes 50 µs."""
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
    """Return the device on which this process may train."""
    return CudaDevice(torch) if has_gpu(torch) else CpuDevice()
