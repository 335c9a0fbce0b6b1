"""Asks the GPU for a number after every layer's gradient: each answer empties its queue."""

from __future__ import annotations

import time

import torch
from options import options, told
from torch import nn

given = options(steps=250)
width, depth, batch = (16, 4, 4) if given.small else (1024, 60, 512)
torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]).to(given.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(batch, width, device=given.device)
norms: list[float] = []
begun = time.perf_counter()
for _ in range(given.steps):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    for _ in range(6):
        for parameter in model.parameters():
            norms.append(parameter.grad.norm().item())
    optimizer.step()
told(begun, given.steps, loss=loss.item(), norms=len(norms))
