"""Large pictures are copied from pageable memory before each step, and the GPU waits for them."""

from __future__ import annotations

import time

import torch
from options import options, sync, told
from torch import nn

given = options(steps=80)
side, batch = (16, 2) if given.small else (224, 256)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
)
model = model.to(given.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
pictures = [torch.randn(batch, 3, side, side) for _ in range(4)]
begun = time.perf_counter()
for step in range(given.steps):
    data = pictures[step % 4].to(given.device)
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
sync(given.device)
told(begun, given.steps, loss=loss.item())
