"""The record of a run on a simulated device."""

from __future__ import annotations

import json

import pytest
from tests.inprocess.recorder.played_device import MS, PlayedDevice, Training, ms

from paceline.inprocess import hooks
from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.device.cuda_events import Losses
from paceline.inprocess.recorder.device.timing import Timing
from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.recorder import Scribe
from paceline.inprocess.recorder.steps.state_machine import Automaton
from paceline.record import layout
from paceline.record.read import STEP_TYPE, _read_rows


class Device:
    """A CUDA device of which only the events are played."""

    kind = "cuda"

    def __init__(self) -> None:
        self.events = PlayedDevice()

    def timing(self, write, before_capture):
        self.timing_ = Timing(self.events, Losses(self.events, lambda count: []), write)
        return self.timing_

    def describe(self):
        return {"device": "cuda"}

    def allocated_bytes(self):
        return 1.0

    def memory(self):
        return (1.0, 2.0, 3.0, 0.0)


class Program(Training):
    """Trains through the real gate."""

    def __init__(self, device: PlayedDevice) -> None:
        self.device = device

    def note(self, code, *details):
        gate.put((self.device.host_ns, code, *details))

    def step(self) -> None:
        self.fetch(1)
        self.forward(1, 10)
        self.backward(1, 20)
        self.optimize(0.5, 3)


@pytest.fixture
def device():
    gate.reset()
    yield Device()
    hooks.undo_all()
    gate.reset()


@pytest.fixture
def scribe(device, tmp_path):
    return Scribe(str(tmp_path), lambda: {**device.describe(), "thread_id": 0}, device, None)


def rows_in(folder):
    return _read_rows(folder / layout.STEPS_FILE, STEP_TYPE, [])


def test_rows_on_disk_carry_the_devices_times(scribe, device, tmp_path):
    program = Program(device.events)
    scribe.work()
    for _ in range(12):
        program.step()
        device.events.wait()
        scribe.work()
    device.timing_._stamper.period = 1
    for _ in range(12):
        program.step()
        device.events.wait()
        scribe.work()
    scribe.end()
    rows = rows_in(tmp_path)
    timed = (rows["flags"] & layout.FLAG_DEVICE_TIMED) != 0
    assert list(rows["index"][:24]) == list(range(24))
    assert timed[:24].sum() >= 16
    row = rows[timed][-1]
    assert row["forward_s"] == pytest.approx(10 / 34 * row["wall_s"], rel=1e-5)
    assert row["backward_s"] == pytest.approx(20 / 34 * row["wall_s"], rel=1e-5)
    assert row["data_wait_s"] == pytest.approx(1 / 34 * row["wall_s"], rel=1e-5)
    summary = json.loads((tmp_path / layout.SUMMARY_FILE).read_text())
    assert summary["device"]["timed_steps"] >= timed.sum()
    assert summary["device"]["off"] is None
    assert summary["syncs"] == []


def test_the_gate_is_taken_when_the_device_is_in_use_and_given_back(scribe, device):
    device.events.capturing = True
    scribe.work()
    assert gate.put == gate.moments.append
    device.events.capturing = False
    scribe.work()
    assert gate.put != gate.moments.append
    assert gate.take_loss is not None
    hooks.undo_all()
    assert gate.put == gate.moments.append
    assert gate.take_loss is None


def test_what_is_held_at_the_end_is_written(scribe, device, tmp_path):
    program = Program(device.events)
    program.note(g.MADE_OPTIMIZER)
    scribe.work()
    for _ in range(8):
        program.step()
    scribe.work()
    scribe.end()
    assert (rows_in(tmp_path)["flags"] & layout.FLAG_TAIL == 0).sum() == 8


def test_optimizer_steps_in_a_row(scribe, device):
    program = Program(device.events)
    scribe.work()
    for _ in range(10):
        for optimizer in (1, 2):
            program.forward(1, 1)
            program.backward(1, 1)
            program.optimize(1, 1, optimizer)
        scribe.work()
    assert device.timing_.ends_per_row == 2


def test_the_two_automata_are_one_kind():
    """What the device's automaton says is comparable because it is the host's."""
    program = Training()
    assert type(program.clock._automaton) is Automaton
    assert ms((0, 0, MS, *[0] * 8)) == {"forward": 1.0}
