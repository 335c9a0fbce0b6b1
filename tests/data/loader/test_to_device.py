"""Batches on their way to a device: what is kept of them, when memory is used again, and forked children.

The device is a fake: its memory is the host's, and a copy reads its source when the test lets it end.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time
import weakref
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import Dataset

from paceline.data import Loader
from paceline.data.loader.to_device import ToDevice
from paceline.data.reading.stages import StageClock
from paceline.inprocess.side_stream import can_copy


class FakeCopy:
    """A copy that ends when the device gets to it, or when somebody waits."""

    def __init__(self, device: FakeDevice, tensors: list[torch.Tensor]) -> None:
        self._device, self._sources = device, list(tensors)
        self._copies = [torch.zeros_like(one) for one in tensors]
        self._arrived = list(self._copies)

    def end(self) -> None:
        """Read the sources, as the device does."""
        if self in self._device.under_way:
            self._device.under_way.remove(self)
            for copy, source in zip(self._copies, self._sources, strict=True):
                copy.copy_(source)
            self._copies = []

    def arrive(self) -> list[torch.Tensor]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def has_ended(self) -> bool:
        return self not in self._device.under_way

    def wait(self) -> None:
        if self._device.has_failed:
            raise RuntimeError("CUDA error: device-side assert triggered")
        self.end()

    def wall_s(self) -> float | None:
        return None


class FakeDevice:
    """Begins copies; they end one after the other when told."""

    def __init__(self) -> None:
        self.under_way: list[FakeCopy] = []
        self.has_failed = False

    def begin(self, tensors, *, timed=False) -> FakeCopy:
        assert all(map(can_copy, tensors))
        self.under_way.append(FakeCopy(self, tensors))
        return self.under_way[-1]

    def catch_up(self) -> None:
        while self.under_way:
            self.under_way[0].end()


class Numbers(Dataset):
    """Tensors that are known by weak references."""

    def __init__(self) -> None:
        self.made: dict[int, weakref.ref[torch.Tensor]] = {}  # by number: threads make samples in any order

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> torch.Tensor:
        made = torch.full((8,), float(number))
        self.made[number] = weakref.ref(made)
        return made

    def alive(self) -> int:
        gc.collect()
        return sum(one() is not None for one in self.made.values())


def is_freed(one: weakref.ref[torch.Tensor]) -> bool:
    """Say whether a tensor is freed; the thread that made it lets go of it when it runs next."""
    end = time.monotonic() + 20
    while one() is not None and time.monotonic() < end:
        time.sleep(0.005)
        gc.collect()
    return one() is None


def stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    """The first sample's own memory is the batch's."""
    return samples[0]


def loader_to(device: FakeDevice, threads: int = 2) -> tuple[Loader, Numbers]:
    data = Numbers()
    loader = Loader(data, 1, threads=threads, processes=0, collate_fn=stacked)  # a busy machine could choose processes
    loader._delivery = ToDevice(torch.device("cpu"), StageClock(), lambda: (torch.device("cpu"), device))
    return loader, data


@pytest.mark.parametrize("threads", [0, 2])
def test_batches_are_what_they_were(threads):
    device = FakeDevice()
    loader, _ = loader_to(device, threads)
    seen = []
    for batch in loader:
        device.catch_up()
        seen.append(float(batch[0]))
    assert seen == list(range(24))


def test_a_batch_is_kept_by_nobody_but_its_taker():
    device = FakeDevice()
    loader, _ = loader_to(device)
    batches = iter(loader)
    for _ in range(4):
        batch = next(batches)
        device.catch_up()  # until then the fake device itself has it
        handed_out = weakref.ref(batch)
        del batch
        assert is_freed(handed_out)
    loader.close()


class Ended(Exception):
    pass


def leave_by_break(loader):
    for _ in loader:
        break


def leave_by_exception(loader):
    try:
        for _ in loader:
            raise Ended
    except Ended:
        pass


def leave_open(loader):
    batches = iter(loader)
    next(batches)
    next(batches)
    batches.close()


def go_through(loader):
    for _ in loader:
        pass


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_open, go_through])
def test_a_loop_that_has_ended_in_any_way_keeps_nothing(leave):
    device = FakeDevice()
    loader, data = loader_to(device)
    for _ in range(3):
        leave(loader)
        assert device.under_way == []
        assert (len(loader._delivery._on_way), len(loader._delivery._taken)) == (0, 0)
        assert data.alive() == 0


def test_the_memory_of_a_batch_stays_until_its_copy_has_ended():
    device = FakeDevice()
    loader, data = loader_to(device)
    batches = iter(loader)
    first = next(batches)
    assert data.made[0]() is not None
    del first
    gc.collect()
    assert data.made[0]() is not None  # the device has not read it yet
    device.catch_up()
    next(batches)
    assert is_freed(data.made[0])
    batches.close()


def test_memory_that_a_failed_device_may_still_read_is_not_freed():
    device = FakeDevice()
    loader, data = loader_to(device)
    batches = iter(loader)
    next(batches)
    device.has_failed = True
    batches.close()
    gc.collect()
    assert data.made[0]() is not None


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str


def test_what_is_no_plain_tensor_is_moved_by_its_own_function():
    device = FakeDevice()
    way = ToDevice(torch.device("cpu"), StageClock(), lambda: (torch.device("cpu"), device))
    packed = pack_padded_sequence(torch.arange(6.0).reshape(2, 3, 1), [3, 2], batch_first=True)
    batch = OrderedDict(
        packed=packed,
        many=defaultdict(list, x=torch.ones(2)),
        one=Record(torch.ones(3), "a"),
        sparse=torch.eye(2).to_sparse(),
    )
    arrived = way.at_once(batch)
    device.catch_up()
    assert (type(arrived), type(arrived["packed"]), type(arrived["many"])) == (OrderedDict, PackedSequence, defaultdict)
    assert arrived["packed"].data.tolist() == packed.data.tolist()
    assert (arrived["many"]["x"].tolist(), arrived["one"].x.tolist(), arrived["one"].name) == ([1, 1], [1, 1, 1], "a")
    assert arrived["sparse"].is_sparse
    assert arrived["one"].x is not batch["one"].x


FORKS = """
import gc, os
import torch
from paceline.core.forks import keep_in_children
from paceline.data import Loader
from paceline.data.reading.stages import StageClock
from paceline.data.loader.to_device import ToDevice

owner = os.getpid()

class Pinned:
    "As CUDA: what is freed in a forked child ends it."
    def __init__(self):
        self.owner = os.getpid()
    def __del__(self):
        if os.getpid() != self.owner:
            os._exit(66)

class FakeCopy:
    def __init__(self, tensors):
        self.there = [one.clone() for one in tensors]
        self.event = Pinned()
        keep_in_children(self)
    def arrive(self):
        self.refuse()
        return self.there
    def has_ended(self):
        self.refuse()
        return False
    def wait(self):
        self.refuse()
    def wall_s(self):
        return None
    def refuse(self):
        if os.getpid() != owner:
            os._exit(67)

class Device:
    def begin(self, tensors, *, timed=False):
        return FakeCopy(tensors)

class Numbers:
    def __len__(self):
        return 32
    def __getitem__(self, number):
        return torch.full((4,), float(number)), Pinned()

def together(samples):
    return [one for one, _ in samples], [pinned for _, pinned in samples]

def prepared(threads):
    loader = Loader(Numbers(), 2, threads=threads, collate_fn=together)
    loader._delivery = ToDevice(torch.device("cpu"), StageClock(), lambda: (torch.device("cpu"), Device()))
    return loader

def after(pid):
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

for threads in (0, 2):
    loader = prepared(threads)
    batches = iter(loader)
    next(batches)
    pid = os.fork()
    if pid == 0:
        loader.close()
        {child}
    after(pid)
    batches.close()
    del loader, batches
    gc.collect()
"""


@pytest.mark.parametrize(
    "child",
    [
        "del loader, batches; gc.collect(); os._exit(0)",
        "loader = batches = None; gc.collect(); raise SystemExit(0)",
        "raise SystemExit(0)",
    ],
)
def test_a_forked_child_frees_and_calls_nothing_of_the_device(tmp_path, child):
    source = Path(__file__).parents[3] / "src"
    program = tmp_path / "forks.py"
    program.write_text(textwrap.dedent(FORKS).format(child=child))
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert (done.stdout.split(), done.returncode) == (["0", "0"], 0), done.stderr
