"""Random numbers that a program draws for split parameters are those of one process, or are refused."""

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
