"""Is a model the same after it has computed in double precision, and does it compute in double precision meanwhile?"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.train.comparison import rounding
from paceline.train.double_precision import in_double


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


def state(model):
    named = [*model.named_parameters(), *model.named_buffers()]
    named = [(name, value) for name, value in named if name != "1.num_batches_tracked"]
    return {name: (id(value), value.data_ptr(), value.dtype, value.tolist()) for name, value in named}


def weights(model):
    return {name: found for name, found in state(model).items() if "running" not in name}


def test_weights_buffers_and_gradients_are_the_same_afterwards():
    model, rows = network(), torch.randn(4, 3, 8, 8)
    model(rows).sum().backward()
    before, gradients = state(model), {name: each.grad for name, each in model.named_parameters()}
    values = {name: each.clone() for name, each in gradients.items()}
    with in_double(model):
        assert {each.dtype for each in model.parameters()} == {torch.float64}
        assert all(each.grad is None for each in model.parameters())
        model(rows.double()).sum().backward()
    assert state(model) == before
    for name, each in model.named_parameters():
        assert each.grad is gradients[name]
        assert torch.equal(each.grad, values[name])


def test_they_are_the_same_after_an_error():
    model = network()
    before = state(model)
    with pytest.raises(RuntimeError, match="dtype|type"), in_double(model):
        model(torch.randn(4, 3, 8, 8))
    assert state(model) == before


class Runs:
    """Runs a model forward and backward; returns the values that the comparison looks at."""

    def __init__(self, model, rows):
        self.model, self.rows = model, rows

    def __call__(self):
        self.model.zero_grad(set_to_none=True)
        output = self.model(self.rows)
        loss = (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum()
        loss.backward()
        gradients = {f"the gradient of {name}": each.grad for name, each in self.model.named_parameters()}
        return {"the loss": loss.detach(), **gradients}


def test_only_a_bias_without_influence_may_differ_by_a_share_of_its_terms():
    model = network()
    runs = Runs(model, torch.randn(16, 3, 8, 8))
    first, before = dict(runs()), weights(model)
    noise = rounding.measured(model, 4, first, runs)
    assert weights(model) == before
    rounded = first["the gradient of 0.bias"].abs().max()
    assert float(rounded) < 32 * noise["the gradient of 0.bias"]
    for name in ("1.bias", "4.bias", "0.weight"):
        size = float(first[f"the gradient of {name}"].pow(2).mean().sqrt())
        assert noise[f"the gradient of {name}"] < 1e-4 * size


class Own(nn.Module):
    """Computes with a matrix that is no parameter, and cannot compute in double precision."""

    def __init__(self):
        super().__init__()
        self.inner, self.matrix = nn.Linear(6, 6), torch.eye(6)

    def forward(self, rows):
        return (self.inner(rows) @ self.matrix).square()


def test_a_model_that_cannot_compute_in_double_precision_is_measured_by_its_last_bits():
    model = Own()
    runs = Runs(model, torch.randn(4, 6))
    noise = rounding.measured(model, 4, dict(runs()), runs)
    assert 0 < noise["the gradient of inner.weight"] < 1e-4
