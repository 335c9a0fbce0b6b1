"""Large matrix products in fp32, as torch does them unless it is told otherwise."""

from __future__ import annotations

import time

import torch
from options import options, sync, told
from torch import nn

given = options(steps=100)
width, depth, batch = (32, 2, 8) if given.small else (4096, 8, 4096)
torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]).to(given.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(batch, width, device=given.device)
begun = time.perf_counter()
for _ in range(given.steps):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
sync(given.device)
told(begun, given.steps, loss=loss.item())
