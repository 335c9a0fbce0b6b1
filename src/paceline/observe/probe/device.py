"""What does the device of this process say of itself? Memory readings that never synchronise; NaN on a CPU."""

from __future__ import annotations

from typing import Any

_NAN = float("nan")


class CpuDevice:
    """The CPU is the device: it has no memory of its own."""

    kind = "cpu"

    def describe(self) -> dict[str, Any]:
        """Return what the meta file says of the device."""
        return {"device": "cpu", "device_name": None}

    def flags(self) -> int:
        """Return the flags that this device adds to a step row."""
        return 0

    def allocated_bytes(self) -> float:
        """Return the bytes allocated now."""
        return _NAN

    def memory(self) -> tuple[float, float, float, float]:
        """Return allocated, reserved and peak bytes, and the number of allocation retries."""
        return (_NAN, _NAN, _NAN, _NAN)


class CudaDevice:
    """One CUDA device, through torch's caching allocator (its counters are kept on the host)."""

    kind = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def _ready(self) -> bool:
        return bool(self._torch.cuda.is_initialized())

    def describe(self) -> dict[str, Any]:
        """Return what the meta file says of the device."""
        if not self._ready():
            return {"device": "cuda", "device_name": None}
        index = self._torch.cuda.current_device()
        properties = self._torch.cuda.get_device_properties(index)
        return {
            "device": "cuda",
            "device_index": index,
            "device_name": properties.name,
            "device_total_bytes": properties.total_memory,
            "device_uuid": str(getattr(properties, "uuid", "")),
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": self._torch.version.cuda,
        }

    def flags(self) -> int:
        """Return the flags that this device adds to a step row."""
        return 0

    def allocated_bytes(self) -> float:
        """Return the bytes allocated now."""
        return float(self._torch.cuda.memory_allocated()) if self._ready() else _NAN

    def memory(self) -> tuple[float, float, float, float]:
        """Return allocated, reserved and peak bytes, and the number of allocation retries."""
        if not self._ready():
            return (_NAN, _NAN, _NAN, _NAN)
        stats = self._torch.cuda.memory_stats()
        return (
            float(stats.get("allocated_bytes.all.current", _NAN)),
            float(stats.get("reserved_bytes.all.current", _NAN)),
            float(stats.get("allocated_bytes.all.peak", _NAN)),
            float(stats.get("num_alloc_retries", _NAN)),
        )


def device_of(torch: Any) -> CpuDevice | CudaDevice:
    """Return the device that training in this process will most likely use."""
    return CudaDevice(torch) if torch.cuda.is_available() else CpuDevice()
