"""Peak memory on GPUs: all devices count, not the current one. The allocator is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace

from paceline.inprocess.settings.trial import peak_memory


class Cuda:
    """Stands in for torch.cuda with two devices, of which 0 is current."""

    def __init__(self) -> None:
        self.peaks = [100, 7_000]

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def reset_peak_memory_stats(self, device: int = 0) -> None:
        self.peaks[device] = 0

    def max_memory_allocated(self, device: int = 0) -> int:
        return self.peaks[device]


class Pluggable(Cuda):
    """Stands in for torch.cuda with an allocator that keeps no statistics."""

    def reset_peak_memory_stats(self, device: int = 0) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support resetPeakStats")

    def max_memory_allocated(self, device: int = 0) -> int:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")


def test_all_devices_count():
    torch = SimpleNamespace(cuda=Cuda())
    assert peak_memory.needed_bytes(torch) == 7_100
    peak_memory.begin(torch)
    assert peak_memory.needed_bytes(torch) == 0


def test_an_allocator_without_statistics_gives_no_peak():
    torch = SimpleNamespace(cuda=Pluggable())
    peak_memory.begin(torch)
    assert peak_memory.needed_bytes(torch) is None
