"""A torch.cuda that is played, for whole watched programs: events pass at once and carry a clock moved on by hand.

Like a real driver it refuses what a forked child does with the objects of its parent: each use and each release there
writes a line to stderr.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from paceline.monitor.supervision import INJECT
from paceline.record.read import read_run
from paceline.record.run import Run

PRELUDE = '''
import gc, os, sys, time, types
from paceline.inprocess.recorder import timed_functions
from paceline.inprocess import gpu_detection
gpu_detection.has_gpu = timed_functions.has_gpu = lambda torch: True
import torch
torch.version.cuda = None  # the device is played: a torch built for a real one would try to record events on it
from paceline.inprocess.recorder import tensors
from paceline.inprocess.recorder.device import timing


device_ms = 0.0


def takes(ms):
    global device_ms
    device_ms += ms


class Owned:
    """Belongs to the process that made it."""

    def __init__(self):
        self.pid = os.getpid()

    def use(self, what, getpid=os.getpid, write=os.write):
        if getpid() != self.pid:
            write(2, f"{type(self).__name__} {what} in a forked child\\n".encode())

    def __del__(self):
        self.use("freed")


class Event(Owned):
    def __init__(self, enable_timing=False):
        super().__init__()
        self.device = None
    def record(self, stream=None):
        self.use("recorded")
        self.device, self.at = torch.device("cuda", stream.device_index), stream.now_ms()
    def query(self):
        self.use("queried")
        return True
    def elapsed_time(self, other):
        self.use("read")
        return other.at - self.at


class Slot(Owned):
    """One element of pinned memory."""

    value = 0.0
    def copy_(self, loss, non_blocking):
        self.use("written")
        self.value = float(loss)
    def __float__(self):
        return self.value


class Loss:
    """A loss that says it is on the device."""

    device = torch.device("cuda", 0)
    def __init__(self, tensor):
        self.detach = lambda: tensor.detach()


class Stream:
    """A queue of its own: what is in it is done at `free_ms`."""

    current = None
    count = 0
    def __init__(self, device_index=0):
        self.device_index, self.free_ms, self.cuda_stream = device_index, 0.0, Stream.count
        self.stream_id = 2 * Stream.count + 1
        Stream.count += 1
    def now_ms(self):
        return max(device_ms, self.free_ms)
    def __enter__(self):
        self.before, Stream.current = Stream.current, self
    def __exit__(self, *raised):
        Stream.current = self.before
    def wait_stream(self, stream):
        takes(max(0.0, stream.free_ms - device_ms))


Stream.current = Stream()
trainer = os.getpid()
cuda = torch.cuda
cuda.is_initialized = lambda: os.getpid() == trainer
cuda.current_device = lambda: 0
cuda.current_stream = lambda device=None: Stream.current
cuda.Event = Event
cuda.memory_reserved = lambda device=None: 1 << 20
cuda.memory_allocated = lambda device=None: 1 << 19
counters = {"allocated_bytes.all.current": 5e8, "reserved_bytes.all.current": 9e8, "allocated_bytes.all.peak": 6e8}
cuda.memory_stats = lambda device=None: counters | {"num_alloc_retries": 0}
card = types.SimpleNamespace(name="NVIDIA H200", total_memory=140 << 30, major=9, minor=0, uuid="1111")
cuda.get_device_properties = lambda device: card


copy_ms = 0.0


def played_copy(self, *args, **kwargs):
    """Copy to the GPU on the current stream, or do what torch does."""
    stream = Stream.current
    if args != ("cuda",):
        return torch_to(self, *args, **kwargs)
    if stream.cuda_stream:
        stream.free_ms = stream.now_ms() + copy_ms
    else:
        takes(copy_ms)
    return torch_to(self)


torch_to = torch.Tensor.to.__wrapped__
torch.Tensor.to, cuda.Stream = played_copy, Stream
timed_functions._mark_copies(torch, "to")
timed_functions._mark_waits(torch)


def losses_on_device():
    """From here on every loss is on the device, and copied to pinned memory."""
    timing.pinned_slots = lambda torch: lambda count: [Slot() for _ in range(count)]
    tensors.Reader.on_device = lambda self, tensor, take: take(Loss(tensor)) if cuda.is_initialized() else None
'''


def run_watched(
    folder: Path, program: str, *arguments: str, prelude: str = PRELUDE
) -> tuple[subprocess.CompletedProcess, Run]:
    """Run a program after the prelude, watched without a supervisor; return how it ended and its record."""
    ended = watch(folder, prelude + program, *arguments)
    return ended, read_run(folder / "run")


def watch(folder: Path, program: str, *arguments: str, timeout_s: float = 150) -> subprocess.CompletedProcess:
    """Run a program, watched without a supervisor; its record is in the folder `run`."""
    (folder / "train.py").write_text(program)
    place = folder / "run"
    for part in ("ranks", "workers", "gauges"):
        (place / part).mkdir(parents=True)
    path = os.pathsep.join([str(INJECT), str(Path(__file__).parents[3] / "src")])
    environment = {**os.environ, "PACELINE_WATCH_DIR": str(place), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=timeout_s)
