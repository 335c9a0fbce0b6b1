"""Memory and random numbers of a program that uses several CUDA devices. The devices are a fake."""

from __future__ import annotations

import torch

from paceline.inprocess.settings import seeds
from paceline.inprocess.settings.trial import peak_memory


class TwoDevices:
    """Peaks and random states of two devices, of which the first is the current one."""

    def __init__(self) -> None:
        self.peaks = [3.0, 40.0]
        self.states = [11, 22]
        self.keeps_statistics = True

    def is_initialized(self):
        return True

    def device_count(self):
        return 2

    def max_memory_allocated(self, device=0):
        if not self.keeps_statistics:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        return self.peaks[device]

    def reset_peak_memory_stats(self, device=0):
        self.max_memory_allocated(device)
        self.peaks[device] = 0.0

    def get_rng_state_all(self):
        return list(self.states)

    def set_rng_state_all(self, states):
        self.states = states


def test_the_peak_is_that_of_all_devices(monkeypatch):
    devices = TwoDevices()
    monkeypatch.setattr(torch, "cuda", devices)
    assert peak_memory.needed_bytes(torch) == 43.0
    peak_memory.begin(torch)
    assert devices.peaks == [0.0, 0.0]


def test_an_allocator_without_statistics_leaves_the_peak_unknown(monkeypatch):
    devices = TwoDevices()
    devices.keeps_statistics = False
    monkeypatch.setattr(torch, "cuda", devices)
    peak_memory.begin(torch)
    assert peak_memory.needed_bytes(torch) is None


def test_the_random_states_of_all_devices_are_restored(monkeypatch):
    devices = TwoDevices()
    monkeypatch.setattr(torch, "cuda", devices)
    restore = seeds.save_states(torch)
    devices.states = [0, 0]
    restore()
    assert devices.states == [11, 22]
