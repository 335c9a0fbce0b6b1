"""A convolutional network that keeps a GPU busy, on pictures that are on the GPU already: nothing is wrong with it."""

from __future__ import annotations

import time

import torch
from marks import Marks
from options import options, sync, told
from torch import nn
from torch.nn import functional

given = options(steps=150)
side, batch, widths = (16, 2, (8, 16)) if given.small else (176, 256, (64, 128, 256, 512))


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=2, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(x)))


torch.manual_seed(0)
blocks = [Block(a, b) for a, b in zip(widths, widths[1:])]
stem = nn.Conv2d(3, widths[0], 3, padding=1)
model = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100))
model = model.to(given.device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
pictures = [torch.randn(batch, 3, side, side, device=given.device) for _ in range(4)]
labels = torch.randint(0, 100, (batch,), device=given.device)
marks = Marks(given.trace, given.steps, given.device)
begun = time.perf_counter()
for step in range(given.steps):
    marks.begin_step()
    with marks.phase("forward"):
        logits = model(pictures[step % 4])
    with marks.phase("mid"):
        loss = functional.cross_entropy(logits, labels)
    with marks.phase("backward"):
        loss.backward()
    with marks.phase("optimizer"):
        optimizer.step()
    with marks.phase("tidy"):
        optimizer.zero_grad()
sync(given.device)
marks.end()
told(begun, given.steps, loss=loss.item())
