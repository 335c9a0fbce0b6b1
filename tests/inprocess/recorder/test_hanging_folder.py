"""The run's folder hangs, as a network drive that is gone: a named pipe that nobody reads stands for its files."""

from __future__ import annotations

import threading
import time

import pytest
from tests.inprocess.recorder.played_cuda import watch

from paceline.inprocess import hooks
from paceline.inprocess.recorder.bounded import run_bounded
from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.recorder import Scribe

PROGRAM = """
import os, platform, sys, time, torch
from torch.utils.data import DataLoader
folder = os.path.join(os.environ["PACELINE_WATCH_DIR"], "ranks", f"{platform.node()}-{os.getpid()}")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(loader):
    for data in loader:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def hang(name):
    while True:
        try:
            os.mkfifo(os.path.join(folder, name))
            return
        except FileExistsError:  # the recorder is about to replace it
            time.sleep(0.001)


if __name__ == "__main__":
    os.makedirs(folder)
    if sys.argv[1] == "always":
        hang("ticks.bin")
    train(DataLoader(torch.randn(800, 8), 4))
    if sys.argv[1] == "always":
        while not os.path.exists(os.path.join(folder, "meta.json")):
            time.sleep(0.01)
        for epoch in range(2):
            train(DataLoader(torch.randn(32, 8), 4, num_workers=2))
    else:
        hang(f"summary.json.{os.getpid()}.tmp")
    print("done")
"""


@pytest.mark.parametrize("when", ["always", "at the end"])
def test_neither_forks_nor_the_exit_hang(tmp_path, when):
    ended = watch(tmp_path, PROGRAM, when, timeout_s=60)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "paceline: watching stopped (recorder: TimeoutError: a write to the record took longer than "
    )


SLOW = """
import time, torch
from paceline.inprocess.recorder import recorder

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.randn(32, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
turn, square = recorder.Scribe.turn, torch.ones(200, 200)


def slow_turn(self):
    turn(self)
    begun = time.monotonic()
    while time.monotonic() - begun < 3:
        square @ square


recorder.Scribe.turn = slow_turn
time.sleep(0.2)
print("done")
"""


class Cpu:
    """A device without timing."""

    def timing(self, write, before_capture):
        return None


@pytest.fixture
def scribe(tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, "_faulted", False)
    monkeypatch.setattr(hooks, "_undo", [])
    monkeypatch.setattr(hooks, "_warn", lambda line: None)
    gate.reset()
    yield Scribe(str(tmp_path), dict, Cpu(), None)
    gate.reset()


def test_a_recorder_that_does_not_stop_is_never_waited_for_again(scribe, monkeypatch):
    hanging, entered = threading.Event(), threading.Event()
    monkeypatch.setattr(scribe, "turn", lambda: entered.set() or hanging.wait())
    scribe.start()
    try:
        assert entered.wait(60)
        scribe.stop(timeout_s=0.1)
        assert scribe.abandoned and hooks.faulted()
        scribe.start()
        assert not scribe._running  # so there is nothing to stop at the next fork
        scribe.write_bounded(lambda: pytest.fail("written to a folder that hangs"))
    finally:
        hanging.set()


def test_what_does_not_return_is_left_behind():
    hanging = threading.Event()
    assert not run_bounded(hanging.wait, timeout_s=0.05)
    hanging.set()
    assert run_bounded(lambda: None)


def test_a_thread_that_works_longer_than_the_timeout_does_not_hang():
    worked = []

    def work() -> None:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.5:
            pass
        worked.append(True)

    assert run_bounded(work, timeout_s=0.1) and worked == [True]


def test_a_program_ends_as_alone_when_the_recorder_is_slow_in_code_of_torch(tmp_path):
    """If Python exits while a thread runs C++ code, the process aborts."""
    done = watch(tmp_path, SLOW)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_what_is_raised_comes_back():
    with pytest.raises(OSError, match="no space"):
        run_bounded(lambda: (_ for _ in ()).throw(OSError("no space")))
