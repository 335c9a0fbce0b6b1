"""Updates that no optimizer hook tells of are seen in the version counters of the parameters."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from paceline.inprocess.recorder import probe_state as g  # noqa: E402
from paceline.inprocess.recorder.probe_state import gate  # noqa: E402
from paceline.inprocess.recorder.steps.updates import UnseenUpdates  # noqa: E402


@pytest.fixture
def noted(monkeypatch):
    """The codes of the moments that are noted."""
    codes = []
    monkeypatch.setattr(gate, "put", lambda moment: codes.append(moment[1]))
    monkeypatch.setattr(gate, "unstepped", 0)
    return codes


def backward(updates, parameter):
    gate.unstepped += 1
    updates.look()
    parameter.grad = torch.ones_like(parameter)


def test_each_unseen_update_is_noted_once(noted):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    updates = UnseenUpdates(torch)
    updates.add(optimizer)
    for _ in range(5):
        for _ in range(3):
            updates.look()  # before a forward
            backward(updates, parameter)
        with torch.no_grad():
            parameter.sub_(0.1 * parameter.grad)
    updates.look()
    assert noted == [g.UPDATED] * 5


def test_a_long_accumulation_is_no_update(noted):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    updates = UnseenUpdates(torch)
    updates.add(optimizer)
    for _ in range(3):
        for _ in range(50):
            optimizer.zero_grad()
            backward(updates, parameter)
        optimizer.step()
        updates.stepped()
    assert noted == []


def test_parameters_are_not_kept_alive(noted):
    import gc
    import weakref

    parameter = torch.nn.Parameter(torch.zeros(3))
    alive = weakref.ref(parameter)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    updates = UnseenUpdates(torch)
    updates.add(optimizer)
    backward(updates, parameter)
    del parameter, optimizer
    gc.collect()
    assert alive() is None
    gate.unstepped += 1
    updates.look()
    assert noted == []


def test_no_function_mode_hears_of_a_look(noted):
    heard = []

    class Listening(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            heard.append(function)
            return function(*args, **(kwargs or {}))

    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    updates = UnseenUpdates(torch)
    updates.add(optimizer)
    gate.unstepped = 1
    with Listening():
        updates.look()
        updates.look()
    assert heard == []
