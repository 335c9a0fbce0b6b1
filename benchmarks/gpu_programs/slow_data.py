"""The data set needs 1 ms of a CPU for each sample, in the process that trains: the GPU waits for it."""

from __future__ import annotations

import time

import torch
from options import options, sync, told
from torch import nn
from torch.utils.data import DataLoader, Dataset

given = options(steps=400)


class Slow(Dataset):
    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        return torch.full((256,), index / 1600), index % 10


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(given.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
begun, step = time.perf_counter(), 0
while step < given.steps:
    for data, label in DataLoader(Slow(), batch_size=16, shuffle=True):
        loss = nn.functional.cross_entropy(model(data.to(given.device)), label.to(given.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == given.steps:
            break
sync(given.device)
told(begun, given.steps, loss=loss.item())
