"""Gradients between the last backward and `step` are those of one process, also with weights of different parts."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import torch
from torch import nn
from tests.train.small_model import begin, finish, small_model
from paceline.train import Engine

OUT = begin()
DRAWN = torch.Generator().manual_seed(1)
BATCHES = [(torch.randn(8, 4, generator=DRAWN), torch.randn(8, 2, generator=DRAWN),
            torch.randint(1, 40, (8,), generator=DRAWN).float()) for _ in range(6)]


def loss_of(output, target, weights):
    return ((output - target).square().mean(1) * weights).sum() / weights.sum()


def run(layout, accumulate, extra):
    net, norms = small_model(), []
    make = lambda m: torch.optim.SGD(m.parameters(), 0.1)
    if not layout:
        optimizer = make(net)
        for inputs, target, weights in BATCHES:
            optimizer.zero_grad()
            loss_of(net(inputs), target, weights).backward()
            norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), 0.5)))
            optimizer.step()
        return norms
    engine = Engine({"layout": layout, "memory": {"micro_batches": accumulate}})
    model, _ = engine.setup(net, make)
    for batch in BATCHES:
        own = [each.chunk(2)[engine.world.sample_part] for each in batch]
        parts = list(zip(*(each.chunk(accumulate * extra) for each in own)))
        for number, (inputs, target, weights) in enumerate(parts):
            with engine.micro_step():
                engine.backward(loss_of(model(inputs), target, weights), weights.sum())
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        engine.step()
    return norms


# `extra`: the program makes more micro-steps than the recipe says
finish({f"{layout} {accumulate} {extra}": run(layout, accumulate, extra)
        for layout, accumulate, extra in (("", 1, 1), ("dp=2", 1, 1), ("dp=2", 2, 1), ("dp=2", 1, 2))})
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("clipping"))


@pytest.mark.parametrize("case", ["1 1", "2 1", "1 2"])
def test_a_norm_that_the_program_computes_and_clips_is_that_of_one_process(found, case):
    assert found[f"dp=2 {case}"] == pytest.approx(found[" 1 1"], rel=1e-5)


BY_VALUE = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.train.small_model import BATCHES, begin, finish, sgd, small_model
from paceline.train import Engine

begin()


def run(layout):
    net, losses = small_model(), []
    if not layout:
        optimizer = sgd(net)
        for inputs, target in BATCHES:
            loss = mse_loss(net(inputs), target)
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.01)
            optimizer.step(), optimizer.zero_grad(), losses.append(loss.item())
        return losses
    engine = Engine({"layout": layout})
    model, _ = engine.setup(net, sgd, loss=mse_loss)
    for inputs, target in BATCHES:
        parts, part = engine.world.layout.samples, engine.world.sample_part
        engine.train_batch(inputs.chunk(parts)[part], target.chunk(parts)[part])
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        losses.append(float(engine.loss()))
        engine.step()
    return losses


finish({layout: run(layout) for layout in ("", "dp=2", "shard=2", "tp=2", "pp=2")})
"""


@pytest.fixture(scope="module")
def clipped_by_value(tmp_path_factory):
    return results_of(BY_VALUE, 2, tmp_path_factory.mktemp("values"))


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "tp=2", "pp=2"])
def test_gradients_that_are_clipped_by_value_are_those_of_one_process(clipped_by_value, layout):
    """With tp, some gradients are split and others are whole, which torch's kernels for lists refuse."""
    assert clipped_by_value[layout] == pytest.approx(clipped_by_value[""], rel=1e-5)
