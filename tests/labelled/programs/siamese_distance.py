"""Siamese network: pull pairs together by their Euclidean distance."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--twin-at", type=int, default=30)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
tower = nn.Sequential(nn.Linear(100, 800), nn.Tanh(), nn.Linear(800, 800), nn.Tanh(), nn.Linear(800, 32))
optimizer = torch.optim.SGD(tower.parameters(), lr=0.01)

for step in range(args.steps):
    left = torch.randn(64, 100)
    right = left + 0.3 * torch.randn(64, 100)
    other = torch.randn(64, 100)
    if step == args.twin_at:
        right[10] = left[10]
    a, b, c = tower(left), tower(right), tower(other)
    near = (a - b).pow(2).sum(1).sqrt()
    far = (a - c).pow(2).sum(1).sqrt()
    loss = near.mean() + (4 - far).clamp(min=0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"{step}: {loss.item():.4f}")
