"""A profiler window that stays open too long or costs too much memory is closed, thrown away and taken again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from tests.inprocess.recorder.played_cuda import run_watched

from paceline.inprocess.recorder import process
from paceline.inprocess.recorder.probe_state import FORWARD, gate
from paceline.inprocess.recorder.profiler import window_limits
from paceline.inprocess.recorder.profiler.window import OperatorWindow
from paceline.inprocess.recorder.profiler.window_limits import Limits

# After its eleventh step it evaluates: with modules, or with operators alone, where nothing of ours is called.
EVALUATES = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
profiled = torch.autograd._profiler_enabled


def evaluate():
    weight, data = model.weight.detach(), torch.randn(4, 8)
    until = time.monotonic() + 60
    while profiled():
        assert time.monotonic() < until, "the window stays open"
        for _ in range(100):
            if sys.argv[1] == "modules":
                with torch.no_grad():
                    model(data)
            else:
                torch.nn.functional.linear(data, weight)


evaluated = 0
for step in range(400):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if profiled() and not evaluated:
        evaluate()
        evaluated += 1
    time.sleep(0.002)
print("done", evaluated)
"""


@pytest.mark.parametrize("way", ["modules", "operators"])
def test_a_window_is_not_open_for_a_whole_evaluation(tmp_path, way):
    ended, run = run_watched(tmp_path, EVALUATES, way, prelude="")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done 1\n", "")
    notes = run.ranks[0].noted("window")
    assert notes[0]["failed"].startswith("closed early, ")
    assert notes[-1]["steps"] == 4  # taken again, of ordinary steps


@pytest.fixture
def window():
    gate.reset()
    made = OperatorWindow(torch)
    yield made
    made.end()
    gate.reset()


def open_window(window: OperatorWindow) -> None:
    window.offer(0.001)
    gate.window()
    assert torch.autograd._profiler_enabled()


def exceed(window: OperatorWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "exceeded", lambda limits: "no step ended for 9.0 s")
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(window._discarding, "ask", lambda: asked.append(window._discard))
    window.check()
    assert asked


def test_it_is_closed_at_the_next_moment(window, monkeypatch):
    open_window(window)
    exceed(window, monkeypatch)
    gate.put((1, FORWARD))
    assert not torch.autograd._profiler_enabled()
    assert list(gate.moments) == [(1, FORWARD)]
    assert gate.put == gate.moments.append and gate.window is None
    assert window.take() == {"failed": "closed early, no step ended for 9.0 s"}


def test_it_is_not_closed_within_a_backward(window, monkeypatch):
    open_window(window)
    exceed(window, monkeypatch)
    gate.nested = True
    gate.put((1, FORWARD))
    assert torch.autograd._profiler_enabled()
    gate.nested = False
    gate.put((2, FORWARD))
    assert not torch.autograd._profiler_enabled()


def test_another_thread_does_not_close_it(window, monkeypatch):
    open_window(window)
    exceed(window, monkeypatch)
    other = threading.Thread(target=gate.put, args=((1, FORWARD),))
    other.start()
    other.join()
    assert torch.autograd._profiler_enabled()


def test_it_is_tried_three_times(window, monkeypatch):
    for attempt in range(3):
        open_window(window)
        exceed(window, monkeypatch)
        gate.put((1, FORWARD))
        assert window.take()["failed"]
        assert window.taken == (attempt == 2)
        assert window.overlaps(0, 1 << 62)


def test_the_limits(monkeypatch):
    now, resident = [0], [1e9]
    monkeypatch.setattr(window_limits, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(window_limits.process, "resident_bytes", lambda: resident[0])
    monkeypatch.setattr(window_limits.process, "peak_resident_bytes", lambda: 3e9)
    limits = Limits(expected_s=2.0)
    now[0] = 7 * 10**9
    resident[0] = 3e9 + window_limits.MOST_BYTES  # the activations of a step, as in the steps before the window
    assert limits.exceeded() is None
    resident[0] += 1
    grown = window_limits.MOST_BYTES >> 20
    assert limits.exceeded() == f"memory grew to {grown} MiB above its peak before the window within 7.0 s"
    now[0] += 1
    assert limits.exceeded() == "no step ended for 7.0 s"


def test_activations_of_a_step_are_not_the_profilers_memory():
    """A step that allocates more than the limit, as the steps before it did, keeps its window open."""
    size = window_limits.MOST_BYTES // 4 * 2
    torch.ones(size)  # 4 bytes each: twice the limit
    limits = Limits(expected_s=2.0)
    activations = torch.ones(size)
    assert limits.exceeded() is None
    below = process.peak_resident_bytes() - process.resident_bytes()  # other tests of this process may have had more
    more = torch.ones((int(below) + 2 * window_limits.MOST_BYTES) // 4)
    assert "above its peak" in limits.exceeded()
    del activations, more
