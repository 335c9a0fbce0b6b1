"""Fills the GPU to 94% (``memory.py full``), or tears its memory into pieces that fit nothing (``memory.py torn``)."""

from __future__ import annotations

import sys
import time

import torch
from options import options, sync, told
from torch import nn

how = sys.argv.pop(1)
given = options(steps=300)
total = torch.cuda.get_device_properties(0).total_memory if given.device == "cuda" else 1 << 24
free = torch.cuda.mem_get_info()[0] if given.device == "cuda" else 1 << 24
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(given.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = torch.randn(256, 1024, device=given.device)
wanted = min(int(0.94 * total), free - (600 << 20)) if given.device == "cuda" else 1 << 20
kept = torch.empty(wanted, dtype=torch.uint8, device=given.device) if how == "full" else None
begun = time.perf_counter()
for step in range(given.steps):
    if how == "torn" and step < 12:  # each a little larger than all before: no freed block fits
        piece = torch.empty(int(total * (0.02 + 0.003 * step)), dtype=torch.uint8, device=given.device)
        del piece
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        time.sleep(0.15)  # so that the run is seen by some readings
sync(given.device)
told(begun, given.steps, loss=loss.item(), share=wanted / total)
