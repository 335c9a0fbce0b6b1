"""The model that `setup` returns has the parameter names, submodules and state dict of the original model."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.train.small_model import BATCHES, adamw, begin, finish, small_model
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = begin()


def decayed(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("3."):
                parameter.clamp_(-0.2, 0.2)


def clipped(model):
    for child in model.children():
        nn.utils.clip_grad_norm_(child.parameters(), 0.1)


def scaled(model):
    for name, module in model.named_modules():
        if name == "0.fc1":
            module.weight.grad.mul_(0.1)
    dict(model.named_parameters())["3.bias"].grad.mul_(0.0)


def indexed(model):
    for layer in [*model][2:]:
        layer.requires_grad_(True)
    model[3].weight.grad.mul_(0.0 if len(model) == 4 else 1.0)


def frozen(model):
    for name, parameter in model.named_parameters():
        if name.startswith("3."):
            parameter.grad = None


def applied(model):
    found = model.apply(lambda module: None)
    assert found is model
    model.train()
    assert all(module.training for module in model.modules())


BEFORE_STEP = {each.__name__: each for each in (clipped, scaled, indexed, frozen, applied)}


def alone(name):
    model = small_model()
    optimizer, losses = adamw(model), []
    for inputs, target in BATCHES:
        loss = mse_loss(model(inputs), target)
        loss.backward()
        losses.append(loss.item())
        if name in BEFORE_STEP:
            BEFORE_STEP[name](model)
        optimizer.step()
        optimizer.zero_grad()
        if name == "decayed":
            decayed(model)
    return losses


def train(layout, name):
    engine = Engine({"layout": layout})
    model, _ = engine.setup(small_model(), adamw, loss=mse_loss)
    parts, part = engine.world.layout.samples, engine.world.sample_part
    losses = []
    for inputs, target in BATCHES:
        engine.train_batch(inputs.chunk(parts)[part], target.chunk(parts)[part])
        losses.append(engine.loss())
        if name in BEFORE_STEP:
            BEFORE_STEP[name](model)
        engine.step()
        if name == "decayed":
            decayed(model)
    return losses


def error_of(function, *given):
    try:
        return function(*given)
    except (UsageError, RuntimeError) as error:
        return str(error)


def loaded(layout):
    other = small_model().state_dict()
    torch.manual_seed(9)
    other = {name: torch.randn_like(value) for name, value in other.items()}
    engine = Engine({"layout": layout})
    model, _ = engine.setup(small_model(), adamw, loss=mse_loss)
    model.load_state_dict(other)
    path = OUT.parent / f"{layout}.pt"
    engine.export(path)
    torch.distributed.barrier()
    return all(torch.equal(value, other[name]) for name, value in torch.load(path).items())


def saved(layout):
    engine = Engine({"layout": layout})
    model, _ = engine.setup(small_model(), adamw, loss=mse_loss)
    kept = {"numbers": torch.ones(3), "text": "kept"}
    torch.save(kept, OUT.parent / f"kept{torch.distributed.get_rank()}.pt")
    return error_of(torch.save, {"model": model.state_dict()}, OUT.parent / "whole.pt")


kind = sys.argv[2]
if kind == "loops":
    names = ["decayed", *BEFORE_STEP]
    found = {layout: {name: train(layout, name) for name in names} for layout in ("dp=2", "shard=2")}
    found[""] = {name: alone(name) for name in names}
else:
    layouts = ("dp=2", "shard=2", "tp=2", "pp=2")
    found = {layout: [loaded(layout), saved(layout)] for layout in layouts}
finish(found)
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("loops"), "loops")


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("name", ["decayed", "clipped", "scaled", "indexed", "frozen", "applied"])
def test_loops_find_parameters_and_modules_by_the_names_of_one_process(loops, layout, name):
    assert loops[layout][name] == pytest.approx(loops[""][name], rel=1e-5)


def test_the_loops_differ_from_plain_training(loops):
    """Otherwise the comparison above would prove nothing."""
    one = loops[""]
    for name in ("decayed", "clipped", "scaled", "indexed", "frozen"):
        assert one[name][-1] != pytest.approx(one["applied"][-1], rel=1e-4), name


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("states"), "states")


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "tp=2", "pp=2"])
def test_the_state_dict_of_a_whole_model_is_loaded(states, layout):
    assert states[layout][0]


@pytest.mark.parametrize("layout", ["shard=2", "tp=2", "pp=2"])
def test_a_part_of_a_model_is_not_saved_as_the_model(states, layout):
    assert "torch.save() would write only the part of the model that this rank has" in states[layout][1]


def test_a_whole_model_is_saved(states):
    assert states["dp=2"][1] is None
