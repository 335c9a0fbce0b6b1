"""A penalty on gradients trains with dp and cp, and is refused with shard and tp, where torch leaves terms out."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import sys
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import mse_loss, scaled_dot_product_attention
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine

LAYOUTS = sys.argv[2].split()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.first, self.last = nn.Linear(4, 12), nn.Linear(4, 8), nn.Linear(8, 2)
        self.tp_plan = {"first": "colwise", "last": "rowwise"}

    def forward(self, rows):
        query, key, value = self.qkv(rows).unsqueeze(1).chunk(3, -1)
        rows = rows + scaled_dot_product_attention(query, key, value).squeeze(1)
        return self.last(self.first(rows).tanh())


def plain(model, rows, target):
    return mse_loss(model(rows), target)


def penalty(model, rows, target):
    rows = rows.clone().requires_grad_()
    output = model(rows)
    (slope,) = torch.autograd.grad(output.sum(), rows, create_graph=True)
    return mse_loss(output, target) + slope.square().mean()


def hessian(model, rows, target):
    loss = mse_loss(model(rows), target)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(slope.square().mean() for slope in slopes)


def batches():
    drawn = torch.Generator().manual_seed(0)
    return [[torch.randn(8, 4, size, generator=drawn, dtype=torch.float64) for size in (4, 2)] for _ in range(3)]


def alone(loss_of):
    torch.manual_seed(0)
    model, found = Net().double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def on_ranks(layout, loss_of):
    torch.manual_seed(0)
    engine, found = Engine({"layout": layout}), []
    try:
        model, _ = engine.setup(Net().double(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in engine.loader(batch for batch in batches()):
            with engine.micro_step():
                engine.backward(loss_of(model, *batch))
            found.append(engine.loss())
            engine.step()
    except UsageError as error:
        return str(error)
    return found


begin()
with sdpa_kernel(SDPBackend.MATH):  # torch cannot differentiate the fast kernels twice
    expected = {each.__name__: alone(each) for each in (plain, penalty)}
    kinds = {layout: (plain, penalty, hessian) for layout in LAYOUTS}
    kinds["shard=2"] = (plain, penalty)  # torch itself ends the other: its graph has the gathered parameters
    found = {layout: {each.__name__: on_ranks(layout, each) for each in kinds[layout]} for layout in LAYOUTS}
finish([expected, found])
"""

SPLIT = ("shard=2", "tp=2", "cp=2")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("derivatives"), " ".join(("dp=2", *SPLIT)), timeout_s=200)


@pytest.mark.parametrize("layout", ["dp=2", *SPLIT])
def test_a_model_in_double_precision_trains_in_it(found, layout):
    expected, by_layout = found
    assert by_layout[layout]["plain"] == pytest.approx(expected["plain"], rel=1e-12)


@pytest.mark.parametrize("layout", ["dp=2", "cp=2"])
def test_a_penalty_on_gradients_trains_where_parameters_are_whole(found, layout):
    expected, by_layout = found
    assert by_layout[layout]["penalty"] == pytest.approx(expected["penalty"], rel=1e-12)


@pytest.mark.parametrize(("layout", "kind"), [("shard=2", "penalty"), ("tp=2", "penalty"), ("tp=2", "hessian")])
def test_a_gradient_that_is_differentiated_again_is_refused(found, layout, kind):
    assert "differentiated again (create_graph=True)" in found[1][layout][kind]
