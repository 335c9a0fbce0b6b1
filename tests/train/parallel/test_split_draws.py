"""Random numbers that a program draws for parameters on several ranks are those of one process, or are refused."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import torch
from torch import nn
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.tp_plan = {"first": "colwise", "last": "rowwise"}

    def forward(self, x):
        return self.last(self.first(x).relu())


def initialized(model):
    torch.manual_seed(4)
    nn.init.xavier_uniform_(model.first.weight)
    nn.init.normal_(model.last.weight, std=0.1)


def of_generator(model):
    drawn = torch.Generator().manual_seed(3)
    model.first.weight.normal_(0.0, 0.5, generator=drawn)
    model.last.weight.bernoulli_(0.5, generator=drawn)
    model.first.bias.exponential_(1.0, generator=drawn)


def perturbed(model):
    torch.manual_seed(5)
    for each in model.parameters():
        each.mul_(0.5).add_(torch.randn_like(each), alpha=0.1)
        each.mul_(torch.rand_like(each))


def unseeded(model):
    nn.init.uniform_(model.last.weight)


def values(layout, change):
    torch.manual_seed(0)
    model = Net()
    if layout:
        engine = Engine({"layout": layout})
        model, _ = engine.setup(model, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        with torch.no_grad():
            change(model)
            torch.rand(3)
    except UsageError as error:
        return str(error)
    whole = (each.detach().full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters())
    return [each.flatten().tolist() for each in whole]


begin()
kinds = (initialized, of_generator, perturbed, unseeded)
found = {layout: {each.__name__: values(layout, each) for each in kinds} for layout in ("", "tp=2", "shard=2")}
finish(found)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("draws"))


@pytest.mark.parametrize("layout", ["tp=2", "shard=2"])
@pytest.mark.parametrize("kind", ["initialized", "of_generator", "perturbed"])
def test_random_numbers_of_a_seed_are_those_of_one_process(found, layout, kind):
    for own, whole in zip(found[layout][kind], found[""][kind], strict=True):
        assert own == pytest.approx(whole, rel=1e-6)


def test_numbers_that_differ_between_ranks_are_refused(found):
    """With tp, ranks have the same samples, and draw the same numbers."""
    assert isinstance(found["tp=2"]["unseeded"], list)
    assert "uniform_() drew different numbers on the ranks" in found["shard=2"]["unseeded"]


STAGES = """
import torch
from torch import nn
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine


class LateNoise(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        self.steps += 1
        super().step(closure)
        for each in self.param_groups[0]["params"]:
            self.steps > 3 and each.data.add_(torch.randn_like(each), alpha=0.1)


def initialized(model):
    nn.init.xavier_uniform_(next(model.parameters()))


def of_generator(model):
    next(model.parameters()).data.normal_(generator=torch.Generator().manual_seed(3))


def of_gradients(model):
    for each in model.parameters():
        each.grad += torch.randn_like(each.grad)


def of_samples(model):
    torch.randn_like(torch.ones(8, 8)), torch.rand(8, 8).bernoulli_(0.5), torch.ones(8).normal_()


def error_of(change, optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    engine = Engine({"layout": "pp=2"})
    try:
        model, _ = engine.setup(model, lambda model: optimizer(model.parameters(), lr=0.1), loss=nn.functional.mse_loss)
        for _ in range(5):
            engine.train_batch(torch.rand(8, 8), torch.rand(8, 1))
            with torch.no_grad():
                change(model)
            engine.step()
    except UsageError as error:
        return str(error)
    return ""


begin()
found = {each.__name__: error_of(each) for each in (initialized, of_generator, of_gradients, of_samples)}
finish({**found, "in late steps": error_of(lambda model: None, LateNoise)})
"""


@pytest.fixture(scope="module")
def found_with_stages(tmp_path_factory):
    return results_of(STAGES, 2, tmp_path_factory.mktemp("stages"))


@pytest.mark.parametrize("kind", ["initialized", "of_generator", "of_gradients", "in late steps"])
def test_numbers_for_parameters_of_a_stage_are_refused(found_with_stages, kind):
    assert "draws random numbers for a parameter or gradient" in found_with_stages[kind]


def test_numbers_for_samples_of_a_pipeline_are_not_refused(found_with_stages):
    """Not even if a sample has the shape of a weight, nor for dropout within the passes."""
    assert found_with_stages["of_samples"] == ""
