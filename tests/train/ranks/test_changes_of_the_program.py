"""Programs that train parameters outside of the model, or that freeze, unfreeze or penalize parameters."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
from contextlib import nullcontext
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.train.small_model import BATCHES, begin, finish, sgd
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = begin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).tanh())


class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.ones(2))

    def forward(self, output, target):
        return mse_loss(output + self.centers, target)


def part(engine, batch):
    return [value.chunk(2)[engine.world.sample_part] for value in batch]




def centers(engine, net, own_loop):
    loss = Centers()
    model, _ = engine.setup(net, sgd, loss=loss)
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    for batch in BATCHES:
        inputs, target = part(engine, batch)
        if own_loop:
            with engine.micro_step():
                engine.backward(loss(model(inputs), target))
        else:
            engine.train_batch(inputs, target)
        engine.step()
        optimizer.step()
        optimizer.zero_grad()


def critic(engine, net, how):
    model, _ = engine.setup(net, sgd, loss=mse_loss)
    other = nn.Linear(4, 2)
    if how == "engine":
        second = Engine({"layout": engine.recipe.layout})
        other, optimizer = second.setup(other, sgd, loss=mse_loss)
    else:
        optimizer = sgd(other)
    for batch in BATCHES:
        inputs, target = part(engine, batch)
        with engine.micro_step():
            # The critic is a part of the loss of the model, but its own step follows from its own loss.
            engine.backward(mse_loss(model(inputs), target) + (0 if how == "alone" else other(inputs).mean()))
        engine.step()
        if how == "engine":
            optimizer.zero_grad()
            second.train_batch(inputs, target)
            second.step()
        else:
            optimizer.zero_grad()
            mse_loss(other(inputs), target).backward()
            optimizer.step()


def changing(engine, net, change):
    if change in ("unfreeze", "freeze again"):
        net.first.requires_grad_(False)
    loss = (lambda o, t: mse_loss(o, t) + 0.1 * sum(p.abs().sum() for p in net.parameters())) if change == "penalty" \\
        else mse_loss
    if engine is None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    else:
        engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), loss=loss)
    if change == "frozen norm":
        net.norm.eval()
    if change == "masking hook":
        net.last.weight.register_hook(lambda gradient: gradient * torch.tensor([[1.0], [0.0]]))
    if change == "limiting hook":
        net.last.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    losses = []
    for number, batch in enumerate(BATCHES):
        if number == 2 and change in ("unfreeze", "freeze again"):
            net.first.requires_grad_(True)
        if number == 4 and change == "freeze again" or number == 2 and change == "freeze":
            net.first.requires_grad_(False)
        if engine is None:
            optimizer.zero_grad()
            value = loss(net(batch[0]), batch[1])
            value.backward()
            optimizer.step()
            losses.append(float(value))
        else:
            engine.train_batch(*part(engine, batch))
            losses.append(engine.loss())
            engine.step()
    return losses


class Uncertain(Net):
    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return super().forward(x), self.logs


def returned(engine, net):
    # The model returns a parameter, such as the weights of several tasks.
    net = Uncertain()
    make = lambda m: torch.optim.SGD(m.parameters(), 0.1)
    model, optimizer = (net, make(net)) if engine is None else engine.setup(net, make)
    for batch in BATCHES:
        inputs, target = batch if engine is None else part(engine, batch)
        if engine is None:
            optimizer.zero_grad()
        with engine.micro_step() if engine is not None else nullcontext():
            output, logs = model(inputs)
            errors = (output - target).square().mean(0)
            loss = (errors * (-logs).exp() + logs).sum()
            engine.backward(loss) if engine is not None else loss.backward()
        (optimizer if engine is None else engine).step()
    return model.logs.tolist() if engine is None else getattr(model, "module", model).logs.tolist()


def tried(layout, run, *given):
    torch.manual_seed(0)
    net = Net()
    try:
        return run(Engine({"layout": layout}) if layout else None, net, *given)
    except UsageError as error:
        return str(error)


found = {}
for layout in ("dp=2", "shard=2"):
    found[f"centers, own loop {layout}"] = tried(layout, centers, True)
    found[f"centers {layout}"] = tried(layout, centers, False)
for how in ("alone", "engine"):
    found[f"critic {how}"] = tried("dp=2", critic, how)
found["returned"] = {layout: tried(layout, returned) for layout in ("", "dp=2")}
for change in ("unfreeze", "freeze", "freeze again", "frozen norm", "penalty", "masking hook", "limiting hook"):
    found[change] = {layout: tried(layout, changing, change) for layout in ("", "dp=2", "shard=2")}
finish(found)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("outside"), timeout_s=200)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("case", ["centers", "centers, own loop"])
def test_an_optimizer_of_parameters_outside_of_the_model_is_refused(found, case, layout):
    said = found[f"{case} {layout}"]
    assert said.startswith(
        f"{layout}: SGD updates a parameter (2) that gets its gradient from the loss, but is not part"
    )


@pytest.mark.parametrize("how", ["alone", "engine"])
def test_other_models_of_the_program_may_be_trained(found, how):
    assert found[f"critic {how}"] is None


@pytest.mark.parametrize("change", ["unfreeze", "freeze", "freeze again"])
def test_shard_trains_what_is_trainable_now_and_dp_refuses_changes(found, change):
    assert found[change]["shard=2"] == pytest.approx(found[change][""], rel=1e-5)
    assert "first.weight, first.bias was frozen or unfrozen after setup()" in found[change]["dp=2"]


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_a_norm_in_evaluation_mode_trains_as_on_one_process(found, layout):
    assert found["frozen norm"][layout] == pytest.approx(found["frozen norm"][""], rel=1e-5)


def test_a_penalty_on_the_weights_is_that_of_one_process_with_dp_and_refused_with_shard(found):
    assert found["penalty"]["dp=2"] == pytest.approx(found["penalty"][""], rel=1e-5)
    assert "a penalty on the weights" in found["penalty"]["shard=2"]


def test_a_parameter_that_the_model_returns_is_trained_as_on_one_process(found):
    assert found["returned"]["dp=2"] == pytest.approx(found["returned"][""], rel=1e-5)


def test_gradient_hooks_on_parameters_are_those_of_one_process_or_refused(found):
    """With dp, they see the gradient of a rank's samples, which does not matter for a mask."""
    assert found["masking hook"]["dp=2"] == pytest.approx(found["masking hook"][""], rel=1e-5)
    assert "the gradient of last.weight differs" in found["limiting hook"]["dp=2"]
    for kind in ("masking hook", "limiting hook"):
        assert "the gradient hook of last.weight is not called" in found[kind]["shard=2"]
