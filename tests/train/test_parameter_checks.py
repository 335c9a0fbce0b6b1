"""With `dp`, gradients and values that differ between ranks are refused; a replica has the attributes of its model."""

from __future__ import annotations

import pytest
from tests.train.launching import on_ranks, results_of

PROGRAM = """
import sys
from contextlib import nullcontext
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset
from tests.train.small_model import BATCHES, begin, finish
from paceline.core.errors import UsageError
from paceline.data import Loader
from paceline.train import Engine

OUT = begin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(4, 8), nn.Linear(8, 2), 1.0

    def encode(self, x):
        return self.first(x).tanh()

    def forward(self, x):
        return self.last(self.encode(x)) * self.scale


class Noisy(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(torch.randn_like(each), alpha=0.01)


def other_module(net, model, x):
    return net(x)


def methods(net, model, x):
    return model.last(model.encode(x))


def attribute(net, model, x):
    model.scale, model.new = 0.5, 0.5
    return model(x) * net.new


def one_call(net, model, x):
    return model(x)


def run(layout, output_of, change=None, optimizer=torch.optim.SGD, backwards=1):
    torch.manual_seed(0)
    net = Net()
    write = {"decay": lambda weight: weight.mul_(0.95), "limit": lambda weight: weight.clamp_(min=0)}.get(change)
    if write is not None:
        net.first.register_forward_pre_hook(lambda module, _: (write(module.weight.data), None)[1])
    make = lambda m: optimizer(m.parameters(), 0.1)
    engine = Engine({"layout": layout}) if layout else None
    model, made = (net, make(net)) if engine is None else engine.setup(net, make)
    losses = []
    try:
        for inputs, target in BATCHES:
            if engine is not None:
                inputs, target = (each.chunk(2)[engine.world.sample_part] for each in (inputs, target))
            with engine.micro_step() if engine is not None else nullcontext():
                values = [mse_loss(output_of(net, model, inputs), target) for _ in range(backwards)]
                if change == "penalty":
                    values.append(0.1 * sum(each.abs().sum() for each in net.parameters()))
                for value in values:
                    engine.backward(value) if engine is not None else value.backward()
            if change == "gradients":
                for each in net.parameters():
                    each.grad += 0.01 * torch.randn_like(each)
            if change == "rate":
                made.param_groups[0]["lr"] *= float(values[0])
            if change == "values":
                with torch.no_grad():
                    net.first.weight.add_(torch.randn_like(net.first.weight), alpha=0.01)
            losses.append(engine.loss() if engine is not None else sum(map(float, values)))
            (engine or made).step()
            if engine is None:
                made.zero_grad()
        names = sorted(model.state_dict())
        weight = net.first.weight.detach()
        weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        return [*losses, float(weight.sum())], names
    except UsageError as error:
        return str(error)


def skip(layout, how):
    engine = Engine({"layout": layout})
    model, _ = engine.setup(Net(), lambda m: torch.optim.SGD(m.parameters(), 0.1))
    rows = torch.zeros(64, 4)
    rows[2] = 1e6  # in the part of rank 0
    try:
        for (inputs,) in engine.loader(Loader(TensorDataset(rows), batch_size=8)):
            if how == "before" and inputs.max() > 1:
                continue
            with engine.micro_step():
                loss = model(inputs).square().mean() + inputs.max()
                if how == "within" and loss > 1:
                    continue
                engine.backward(loss)
            engine.step()
        return engine.steps
    except UsageError as error:
        if how == "within":  # the other rank waits
            raise
        return str(error)


CASES = {
    "one call": (one_call,), "attribute": (attribute,), "optimizer": (one_call, None, Noisy),
    "penalty": (one_call, "penalty"), "decay": (one_call, "decay"), "limit": (one_call, "limit"),
    "other module": (other_module,), "methods": (methods,), "backwards": (one_call, None, torch.optim.SGD, 2),
    "rate": (one_call, "rate"), "gradients": (one_call, "gradients"), "values": (one_call, "values"),
}
LAYOUTS = dict.fromkeys(["rate", "optimizer"], ("", "dp=2", "shard=2"))
found = {}
for name, case in CASES.items():
    found[name] = {layout: run(layout, *case) for layout in LAYOUTS.get(name, ("", "dp=2"))}
for layout in ("dp=2", "shard=2"):
    found[f"skip, none {layout}"] = skip(layout, "none")
    found[f"skip, before {layout}"] = skip(layout, "before")
finish(found)
"""
WITHIN = PROGRAM[: PROGRAM.index("CASES = {")] + "\nfinish(skip(sys.argv[2], 'within'))\n"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("replicas"), timeout_s=200)


@pytest.mark.parametrize("case", ["one call", "attribute", "optimizer", "penalty", "decay", "limit"])
def test_training_and_state_dict_are_those_of_one_process(found, case):
    """Attributes that are set on the replica belong to the model, and optimizers that draw draw the same numbers."""
    values, names = found[case]["dp=2"]
    expected, expected_names = found[case][""]
    assert values == pytest.approx(expected, rel=1e-5)
    assert names == expected_names


def test_optimizers_of_split_parameters_draw_the_numbers_of_one_process(found):
    values, _ = found["optimizer"]["shard=2"]
    assert values == pytest.approx(found["optimizer"][""][0], rel=1e-5)


@pytest.mark.parametrize("case", ["other module", "methods", "backwards"])
def test_gradients_that_were_not_averaged_are_refused(found, case):
    said = found[case]["dp=2"]
    assert "dp=2, step 1 after setup(): the gradient of first.weight differs between the ranks" in said
    assert "Compute the loss from the module that setup() returned, with one call of it before each backward()" in said


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_a_learning_rate_that_follows_the_loss_of_one_rank_is_refused(found, layout):
    assert f"{layout}, step 1 after setup(): lr of group 0 of the optimizer differs" in found["rate"][layout]


def test_noise_in_the_training_loop_is_refused(found):
    assert "step 1 after setup(): the gradient of first.weight differs" in found["gradients"]["dp=2"]
    assert "the values of first.weight differ between the ranks" in found["values"]["dp=2"]


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_a_batch_that_one_rank_skips_is_noticed(found, layout):
    assert "ranks have read different numbers of batches" in found[f"skip, before {layout}"]
    assert found[f"skip, none {layout}"] == 8


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_a_micro_step_without_a_loss_ends_the_run_at_once(tmp_path, layout):
    (tmp_path / "program.py").write_text(WITHIN)
    ran = on_ranks(2, tmp_path / "program.py", tmp_path / "result.json", layout, timeout_s=100)
    assert ran.returncode == 2
    assert "rank 0: micro_step() ended without engine.backward(loss)" in ran.stderr
