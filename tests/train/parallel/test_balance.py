"""Is a row of layers cut where the dearest stage is cheapest?"""

from __future__ import annotations

import time
from itertools import combinations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.train.parallel.balance import counted, cut, measured


def dearest(costs, parts):
    return max(sum(costs[i] for i in part) for part in parts)


def best_of_all(costs, stages):
    """By trying every way to cut."""
    ways = combinations(range(1, len(costs)), stages - 1)
    bounds = ([0, *way, len(costs)] for way in ways)
    return min(dearest(costs, [range(a, b) for a, b in zip(way, way[1:])]) for way in bounds)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8).flatmap(
        lambda c: st.tuples(st.just(c), st.integers(1, len(c)))
    )
)
def test_no_other_cut_is_better(case):
    costs, stages = case
    parts = cut(costs, stages)
    assert [i for part in parts for i in part] == list(range(len(costs)))
    assert len(parts) == stages
    assert all(parts)
    assert dearest(costs, parts) == best_of_all(costs, stages)


def test_an_embedding_costs_nothing_and_a_head_counts():
    assert cut([0, 4, 4, 4, 4, 8], 3) == [range(3), range(3, 5), range(5, 6)]


class Slow(nn.Module):
    """A layer without products of matrices, which counting takes for nothing."""

    def forward(self, x):
        time.sleep(0.01)
        return x + torch.rand(x.shape)


def test_what_layers_cost_is_measured_and_changes_nothing():
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), Slow(), nn.Linear(4, 4)]
    before, state = torch.get_rng_state(), [value.clone() for value in layers[1].buffers()]
    costs = measured(layers, torch.zeros(8, 4))
    assert [counted(layer) for layer in layers] == [32.0, 0.0, 0.0, 32.0]
    assert costs[2] >= 0.01
    assert min(costs) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(own, other) for own, other in zip(layers[1].buffers(), state))
    assert all(value.grad is None for value in layers[0].parameters())
