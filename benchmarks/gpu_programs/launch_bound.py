"""A recurrent cell by hand, one tiny kernel after the other: the GPU waits for Python."""

from __future__ import annotations

import time

import torch
from options import options, told
from torch import nn

given = options(steps=120)
width, length, batch = (8, 6, 2) if given.small else (32, 128, 16)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keep, self.take = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(sequence[:, 0])
        for place in range(sequence.shape[1]):
            gate = torch.sigmoid(self.keep(state))
            state = gate * state + (1 - gate) * torch.tanh(self.take(sequence[:, place]))
        return state


torch.manual_seed(0)
model = Cell().to(given.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = torch.randn(batch, length, width, device=given.device)
begun = time.perf_counter()
for _ in range(given.steps):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
told(begun, given.steps, loss=loss.item())
