"""Somebody set one thread once, for a test, and it stayed; the layers are wide."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rows = torch.randn(8192, 256, generator=torch.Generator().manual_seed(1))
    labels = (rows[:, :4].sum(1) > 0).long()
    layers = [nn.Linear(256, 1024), nn.GELU()]
    for _ in range(3):
        layers += [nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024)]
    model = nn.Sequential(*layers, nn.Linear(1024, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, args.steps + 1):
        batch = torch.randint(0, len(rows), (128,))
        loss = nn.functional.cross_entropy(model(rows[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)


if __name__ == "__main__":
    main()
