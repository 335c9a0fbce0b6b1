"""Which losses are read from memory, and what of a program's modes and profilers hears of it?"""

from __future__ import annotations

import pytest
import torch

from paceline.inprocess.recorder.tensors import number_reader

READ = number_reader(torch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [0.0, -1.5, 1000.0, float("inf")])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_number_of_any_kind(dtype, value, shape):
    assert READ(torch.full(shape, value, dtype=dtype)) == value


def test_no_number_is_no_number():
    assert READ(torch.tensor(float("nan"))) != READ(torch.tensor(float("nan")))


def test_an_element_of_a_larger_tensor():
    assert READ(torch.arange(10.0)[7]) == 7.0


def test_with_a_graph_behind_it():
    loss = (torch.nn.Linear(3, 1)(torch.ones(3)) * 0 + 2.5).sum()
    assert READ(loss) == 2.5
    assert loss.grad_fn is not None


@pytest.mark.parametrize(
    "other",
    [
        None,
        3.0,
        torch.ones(2),
        torch.ones(0),
        torch.tensor(3),
        torch.tensor(1j),
        torch.ones((), device="meta"),
        torch.ones(1).to_sparse(),
        torch._efficientzerotensor(()),
    ],
    ids=str,
)
def test_anything_else_is_left_alone(other):
    assert READ(other) is None


def test_inside_of_transforms():
    seen = []

    def loss(x):
        y = (x * x).sum()
        seen.append(READ(y))
        return y

    torch.func.vmap(loss)(torch.ones(3, 2))
    torch.func.grad(loss)(torch.ones(2))
    assert seen[0] is None
    assert seen[1] in (None, 2.0)


def test_a_profiler_hears_nothing():
    loss = torch.tensor(1.0)
    with torch.profiler.profile() as profiler:
        READ(loss)
    assert [event.name for event in profiler.events() if event.name.startswith("aten::")] == []


def test_a_function_mode_hears_nothing():
    class Mode(torch.overrides.TorchFunctionMode):
        heard = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.heard += 1
            return function(*args, **(kwargs or {}))

    loss = torch.tensor(4.0)
    with Mode() as mode:
        assert READ(loss) == 4.0
    assert mode.heard == 0


def test_a_subclass_with_memory_of_its_own_is_read_and_hears_nothing():
    heard = []

    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            heard.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    assert READ(torch.nn.Parameter(torch.tensor(2.5))) == 2.5
    loss = torch.tensor(2.5).as_subclass(Tagged)
    heard.clear()
    assert number_reader(torch)(loss) == 2.5
    assert heard == []


def test_a_subclass_that_hears_of_operators_is_left_alone():
    class Listening(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError("it was asked")

    loss = torch.Tensor._make_subclass(Listening, torch.tensor(2.5))
    assert number_reader(torch)(loss) is None
