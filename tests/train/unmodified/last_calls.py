"""Programs that end between two comparisons of their model; each keeps its model until the end."""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
X = torch.randn(64, 12)
Y = (X.sum(1) > 0).long()


class Model(nn.Module):
    """Subtracts the mean of the rows with a weight that grows from call `mixes_from` on, by the same operations."""

    def __init__(self, mixes_from=1000):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.mixes_from = mixes_from

    def forward(self, rows):
        self.calls += self.training
        hidden = self.norm(self.first(rows)).tanh()
        return self.last(hidden - hidden.mean(0) * (self.calls - self.mixes_from).clamp(0, 1))


def fit(model, steps=40):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        place = step * 8 % 64
        loss = cross_entropy(model(X[place : place + 8]), Y[place : place + 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}", flush=True)
    return model


def mixes_between():
    """Call 30 is between the comparisons at calls 24 and 45."""
    return fit(Model(30)).eval()


def independent():
    return fit(Model()).eval()


def other_forward():
    """The program changes its model after the training; this is not a difference of the training."""
    model = fit(Model())
    model.forward = lambda rows: rows.sum(0)
    return model


def other_attribute():
    model = fit(Model())
    model.mixes_from = 0
    return model


def half():
    return fit(Model()).to(torch.bfloat16)


def hooked():
    model = fit(Model())
    model.first.register_forward_hook(lambda module, given, result: result - result.mean(0))
    return model


def kept_on_one_rank():
    """Each rank runs its garbage collector at a different time."""
    models = [fit(Model()) for _ in range(3)]
    return models if json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"] else models[:1]


KEPT = globals()[sys.argv[1]]()
