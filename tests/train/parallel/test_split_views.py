"""A write into a part of a split weight, gradient or state changes the weight as on one process, or raises an error."""

from __future__ import annotations

import pytest
from tests.train.launching import on_ranks, results_of

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from paceline.core.errors import UsageError
from paceline.train import Engine
from tests.train.mlp_block import Block

OUT, LAYOUT = Path(sys.argv[1]), sys.argv[2]
DRAWN = torch.Generator().manual_seed(0)
INPUTS, TARGET = torch.randn(8, 8, generator=DRAWN), torch.randn(8, 8, generator=DRAWN)


def assign(value, index, new):
    value[index] = new


def multiply(value, index):
    value[index] *= 2


def two_parts(value):
    first, others = value[0], value[1:]
    first.add_(1)
    others.add_(2)
    first.mul_(3)


def changed_since(value):
    part = value[1:]
    value.mul_(2)
    part.add_(1)


WRITES = {
    "rows": lambda value: value[::2].sub_(1),
    "a row": lambda value: value[0].sub_(1),
    "last rows": lambda value: value[3:].zero_(),
    "columns": lambda value: value[:, 1].zero_(),
    "an element": lambda value: value[2, 1].mul_(5),
    "part of a part": lambda value: value[2:][::2].mul_(5),
    "assigned rows": lambda value: assign(value, slice(None, None, 2), value[::2] * 3),
    "an assigned row": lambda value: assign(value, 1, 0),
    "an assigned element": lambda value: assign(value, (2, 1), 4.0),
    "assigned numbers": lambda value: assign(value, slice(0, 5), 0.5),
    "multiplied rows": lambda value: multiply(value, slice(None, None, 3)),
    "chunk": lambda value: [part.mul_(number) for number, part in enumerate(value.chunk(3))],
    "torch.chunk": lambda value: torch.chunk(value, 2)[1].mul_(3),
    "split": lambda value: value.split(3)[1].add_(5),
    "tensor_split": lambda value: value.tensor_split(2)[1].add_(5),
    "narrow": lambda value: value.narrow(0, 0, 1).sub_(2),
    "data": lambda value: value.data[1:].sub_(1),
    "assigned data": lambda value: assign(value.data, slice(1, None), 7),
    "unbind": lambda value: [part.mul_(number) for number, part in enumerate(value.unbind())],
    "iteration": lambda value: [part.mul_(number) for number, part in enumerate(value)],
    "flat": lambda value: value.view(-1).sub_(1),
    "part of flat": lambda value: value.view(-1)[::2].sub_(1),
    "transposed": lambda value: value.t().sub_(1),
    "part of transposed": lambda value: value.t()[:, ::2].sub_(1),
    "diagonal": lambda value: value.diagonal().mul_(3),
    "lists": lambda value: torch._foreach_mul_([value[0], value[2]], 3),
    "out": lambda value: torch.add(value[0], value[1], out=value[2]),
    "copy": lambda value: value[1:3].copy_(value[2:4] * 2),
    "fill where": lambda value: value[::2].masked_fill_(value[::2] > 0, 9),
    "two parts": two_parts,
    "mask": lambda value: assign(value, value > 0, 0.0),
    "indices": lambda value: assign(value, [0, 2], 1.0),
    "whole tensor": lambda value: assign(value, 1, torch.ones(value.shape[1])),
    "changed since": changed_since,
    "where": lambda value: value.copy_(torch.where(value > 0, value, 0)),
}


class Rows(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p]
            state.setdefault("sum", torch.zeros_like(p))[::2] += p.grad[::2]
            p[::2] -= 0.1 * state["sum"][::2]
            for part, gradient in zip(p.chunk(2), p.grad.chunk(2)):
                part.sub_(0.1 * gradient)


def net():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def whole(value):
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()


def difference(write, value):
    expected = whole(value)
    try:
        write(expected)
        with torch.no_grad():
            write(value)
    except UsageError as error:
        return str(error)
    except RuntimeError as error:
        return "torch: " + str(error)
    return (whole(value) - expected).abs().max().item()


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
engine = Engine({"layout": LAYOUT})
model, _ = engine.setup(net(), lambda model: Rows(model.parameters()), loss=mse_loss)
one = net()
mine = Rows(one.parameters())
for _ in range(3):
    for inputs, target in engine.loader(DataLoader(TensorDataset(INPUTS, TARGET), 8)):
        engine.train_batch(inputs, target)
        engine.step()
    mine.zero_grad()
    mse_loss(one(INPUTS), TARGET).backward()
    mine.step()
trained = max((whole(p) - q).abs().max().item() for p, q in zip(model.parameters(), one.parameters()))
weights = [p for p in model.parameters() if p.dim() == 2 and hasattr(p, "placements")][:2]
found = {name: [difference(write, weight.detach()) for weight in weights] for name, write in WRITES.items()}
for weight in weights:
    weight.grad = torch.ones_like(weight)
found["gradient"] = [difference(WRITES["last rows"], weight.grad) for weight in weights]
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps([trained, found]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
REFUSED = {
    "mask": "an assignment to a part of a tensor that is split over ranks failed",
    "indices": "an assignment to a part of a tensor that is split over ranks failed",
    "whole tensor": "an assignment to a part of a tensor that is split over ranks failed",
    "changed since": "which was changed after the part was taken",
}
MAY_BE_REFUSED = {
    "unbind": "torch: ",
    "iteration": "torch: ",
    "part of flat": "on a part of a tensor that is split as (_StridedShard",
}


@pytest.fixture(scope="module", params=[("shard=2", 2), ("tp=2", 2), ("dp=2,shard=2", 4)])
def results(request, tmp_path_factory):
    layout, ranks = request.param
    return layout, *results_of(PROGRAM, ranks, tmp_path_factory.mktemp("views"), layout, timeout_s=240)


def test_an_optimizer_that_updates_parts_trains_as_on_one_process(results):
    _, trained, _ = results
    assert trained < 1e-6


def test_each_write_into_a_part_is_right_or_refused(results):
    _, _, found = results
    wrong = {}
    for name, differences in found.items():
        for difference in differences:
            if isinstance(difference, str):
                allowed = REFUSED | MAY_BE_REFUSED
                right = name in allowed and allowed[name] in difference
            else:
                right = difference < 1e-6
            if not right:
                wrong[name] = difference
    assert wrong == {}


@pytest.mark.parametrize("name", ["rows", "an assigned row", "chunk", "data", "gradient", "two parts"])
def test_usual_writes_are_right(results, name):
    assert [difference for difference in results[2][name] if isinstance(difference, str)] == []


def test_parts_of_weights_that_two_axes_split_are_refused(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = on_ranks(4, path, tmp_path / "result.json", "shard=2,tp=2")
    assert "on a part of a tensor that is split as (_StridedShard" in done.stderr
