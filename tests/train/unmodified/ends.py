"""A program that trains until something ends it."""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import nn

rank = json.loads(os.environ["PACELINE_RANK"])["rank"]
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    if step == 3:
        print("training", flush=True)
    if step == 4 and rank == 1 and sys.argv[1] == "raise":
        raise ValueError("rank 1 alone is wrong")
    if step == 4 and rank == 1 and sys.argv[1] == "kill":
        os.kill(os.getpid(), 9)
