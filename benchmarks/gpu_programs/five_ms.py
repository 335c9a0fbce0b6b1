"""A step of five milliseconds of the GPU's time, timed in blocks: of ``--layers N``, or of as many as it takes."""

from __future__ import annotations

import sys
import time

import torch
from options import options, sync, told
from torch import nn

layers = 0
if "--layers" in sys.argv:
    place = sys.argv.index("--layers")
    layers = int(sys.argv[place + 1])
    del sys.argv[place : place + 2]
given = options(steps=1200)
width, batch = (16, 4) if given.small else (2048, 1024)
BLOCK = 10 if given.small else 50


def prepared(count: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    parts = [layer for _ in range(count) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*parts).to(given.device)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    """Return the milliseconds of a step."""
    sync(given.device)
    begun = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
    sync(given.device)
    return (time.perf_counter() - begun) / steps * 1e3


data = torch.randn(batch, width, device=given.device)
if not layers:
    pair = prepared(8)
    train(*pair, 20)
    layers = max(1, round(8 * 5.0 / train(*pair, 50)))
model, optimizer = prepared(layers)
begun = time.perf_counter()
train(model, optimizer, BLOCK)
blocks = [train(model, optimizer, BLOCK) for _ in range(max(1, given.steps // BLOCK))]
told(begun, given.steps, layers=layers, blocks_ms=blocks)
