"""The profiler window, on a CPU and on a simulated device."""

from __future__ import annotations

import pytest
import torch
from tests.inprocess.recorder.played_device import PlayedDevice

from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.profiler.operators import summarise
from paceline.inprocess.recorder.profiler.window import OperatorWindow

MODEL = torch.nn.Linear(16, 16)


def step() -> None:
    MODEL(torch.ones(4, 16)).sum().backward()
    if gate.window is not None:
        gate.window()


@pytest.fixture
def window():
    gate.reset()
    yield OperatorWindow(torch)
    gate.reset()


@pytest.fixture
def on_device(window, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)  # a torch built for a real device would record events on it
    window.events = PlayedDevice()
    window.events.index = 0
    return window


def test_four_steps_on_a_cpu(window):
    window.offer(0.001)
    for _ in range(8):
        step()
    found = window.take()
    assert found["steps"] == 4
    assert found["matrix_work"] is None
    assert {o["device_self_s"] for o in found["operators"]} == {None}
    assert {o["name"]: o["count"] for o in found["operators"]}["aten::addmm"] == 4
    assert window.take() is None


def test_another_window_when_it_is_asked_for(window):
    assert not window.again()  # the first has not been offered yet
    for _ in range(2):
        window.offer(0.001)
        assert not window.again()  # it is due
        for _ in range(8):
            step()
        assert not window.again()  # it has not been read
        assert window.take()["steps"] == 4
        assert window.take() is None
        assert window.again()


def test_one_step_with_shapes_on_a_device(on_device):
    on_device.offer(0.001)
    for _ in range(3):
        step()
    found = on_device.take()
    assert found["steps"] == 1
    assert found["matrix_work"]["flops"]["matmul"] == 2 * (2 * 4 * 16 * 16)  # forward, and the weights' gradient
    assert gate.window is None


def test_a_step_of_two_optimizers_is_whole(on_device):
    on_device.offer(0.001, parts=2)
    for _ in range(4):
        step()
    found = on_device.take()
    assert found["steps"] == 1
    assert found["matrix_work"]["flops"]["matmul"] == 2 * 2 * (2 * 4 * 16 * 16)


def test_it_is_not_read_before_the_device_has_passed_it(on_device):
    on_device.events.queue(50)
    on_device.offer(0.001)
    step()
    step()
    assert on_device.take() is None
    on_device.events.wait()
    assert on_device.take() is not None


def test_it_does_not_begin_while_a_graph_is_captured(on_device):
    on_device.events.capturing = True
    on_device.offer(0.001)
    step()
    assert on_device.begun_ns is None
    on_device.events.capturing = False
    step()
    assert on_device.begun_ns is not None
    on_device.end()


def test_a_device_that_is_not_used_is_none(on_device):
    on_device.events.index = None
    on_device.offer(0.001)
    for _ in range(6):
        step()
    assert on_device.take()["steps"] == 4


def test_a_failure_on_a_device_is_told_and_watching_goes_on(on_device):
    def fail():
        raise RuntimeError("CUPTI is busy")

    on_device.events.record = fail
    on_device.offer(0.001)
    step()
    step()
    assert on_device.take() == {"failed": "RuntimeError: CUPTI is busy"}
    assert on_device.take() is None
    assert gate.window is None


class Event:
    """One event of the profiler's: µs on the host and on the device."""

    def __init__(self, kind, name="", host=0.0, device=None) -> None:
        self._kind, self._name, self._host, self._device = kind, name, host, device

    def kind(self):
        return self._kind

    def name(self):
        return self._name

    def has_cuda(self):
        return self._device is not None

    def cpu_elapsed_us(self, other):
        return other._host - self._host

    def cuda_elapsed_us(self, other):
        return other._device - self._device


def test_an_operators_own_time_on_the_device():
    linear = Event("push", "aten::linear", 0, 0)
    thread = [
        linear,
        Event("push", "aten::addmm", 2, 1),
        Event("pop", host=12, device=101),
        Event("push", "python frame", 13, 101),
        Event("push", "aten::add_", 14, 101),
        Event("pop", host=18, device=111),
        Event("pop", host=19, device=111),
        Event("pop", host=20, device=112),
    ]
    found = {o["name"]: o for o in summarise([thread])}
    assert found["aten::addmm"] == {"name": "aten::addmm", "count": 1, "self_s": 1e-5, "device_self_s": 1e-4}
    assert found["aten::linear"]["device_self_s"] == pytest.approx(2e-6)
    assert found["aten::linear"]["self_s"] == pytest.approx(6e-6)
    assert list(found) == ["aten::addmm", "aten::add_", "aten::linear"]
