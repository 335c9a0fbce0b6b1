"""A model of blocks and a module with buffers, created with values or on the meta device."""

from __future__ import annotations

import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.empty(4))
        self.register_buffer("shift", torch.empty(4))
        self.register_buffer("kept", torch.empty(2, dtype=torch.long), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.factor)
        self.shift.copy_(torch.arange(4.0))
        self.kept.fill_(3)

    def forward(self, x):
        return x * self.factor + self.shift


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x)))


def net():
    return nn.Sequential(nn.Linear(3, 4), Mlp(), Scale(), Mlp(), nn.LayerNorm(4), Mlp(), nn.Linear(4, 2))


def on_meta():
    with torch.device("meta"):
        return net()


def draw(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight.data, std=0.02)
        nn.init.zeros_(module.bias)
    elif hasattr(module, "reset_parameters"):
        module.reset_parameters()
