"""A block of an MLP with the layer names that `tp` splits without a plan."""

from __future__ import annotations

from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc1, self.act, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(self.norm(x))))
