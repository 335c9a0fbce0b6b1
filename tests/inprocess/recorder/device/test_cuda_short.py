"""The device of a program that trains for a few milliseconds is recorded, although no CUDA event is recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.inprocess.recorder.played_cuda import run_watched

from paceline.inprocess.recorder.device.readings import CudaDevice

PROGRAM = """
cuda.device_count = lambda: 2
cuda.current_device = lambda: 1
cuda.memory_reserved = lambda device=None: (1 << 20) * (device == 1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
"""


def test_the_device_of_a_short_program_is_recorded(tmp_path):
    ended, run = run_watched(tmp_path, PROGRAM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    rank = run.ranks[0]
    assert rank.noted("fault") == []
    assert (len(rank.steps), rank.device, rank.meta["device_index"]) == (3, "cuda", 1)


class Cuda:
    """Stands in for torch.cuda with two devices."""

    def __init__(self, reserved: tuple[int, int], *, started: bool = True) -> None:
        self._reserved, self._started = reserved, started

    def is_initialized(self) -> bool:
        return self._started

    def device_count(self) -> int:
        return 2

    def memory_reserved(self, index: int | None) -> int:
        assert self._started, "a question would start CUDA"
        return self._reserved[index or 0]

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name=f"GPU {index}", total_memory=1, major=9, minor=0, uuid="")


@pytest.mark.parametrize(
    ("cuda", "name"),
    [
        (Cuda((0, 8)), "GPU 1"),
        (Cuda((8, 8)), "GPU 0"),
        (Cuda((0, 0)), None),
        (Cuda((8, 8), started=False), None),
    ],
)
def test_without_an_event_the_device_is_the_one_that_holds_tensors(cuda, name):
    stand_in = SimpleNamespace(**{**vars(torch), "cuda": cuda})
    assert CudaDevice(stand_in).describe()["device_name"] == name
