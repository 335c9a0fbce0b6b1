"""A loss on a GPU is handed over to be copied, unheard; here the GPU is a word that a tensor says."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.tensors import Reader


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    return Reader(torch)


def test_one_number_is_handed_over(reader):
    loss = torch.ones(())
    assert reader.on_device(loss, lambda tensor: (tensor,))[0] is loss


def test_more_are_not(reader):
    assert reader.on_device(torch.ones(2), lambda tensor: 1) is None


def test_nothing_of_the_host(monkeypatch):
    assert Reader(torch).on_device(torch.ones(()), lambda tensor: 1) is None


def test_a_subclass_is_left_alone(reader):
    assert reader.on_device(torch.nn.Parameter(torch.ones(())), lambda tensor: 1) is None
    assert reader.on_device(None, lambda tensor: 1) is None


def test_a_function_mode_does_not_hear_of_it(reader):
    heard = []

    class Listens(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            heard.append(function)
            return function(*args, **(kwargs or {}))

    with Listens():
        loss = torch.ones(())
        heard.clear()
        assert reader.on_device(loss, lambda tensor: tensor.detach().reshape(1)) is not None
        assert heard == []


def test_where_a_dispatch_mode_would_hear_it_is_left(reader):
    class Listens(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    loss = torch.ones(())
    with Listens():
        assert reader.on_device(loss, lambda tensor: 1) is None


def test_the_profiler_window_does_not_count_it(reader, monkeypatch):
    monkeypatch.setattr(gate, "window", lambda optimizer: None)
    loss = torch.ones((), requires_grad=True) * 2
    with torch.autograd.profiler.profile(use_kineto=False) as profiler:
        assert reader.on_device(loss, lambda tensor: torch.empty(256).split(1)) is not None
        assert reader.detached(loss) is not None
        loss.neg()
    assert [event.name for event in profiler.function_events] == ["aten::neg"]


def test_a_profiler_of_the_program_counts_its_own_operators_afterwards(reader):
    with torch.autograd.profiler.profile(use_kineto=False) as profiler:
        assert reader.detached(torch.ones(())) is None
        torch.ones(1).neg()
    assert "aten::neg" in [event.name for event in profiler.function_events]
