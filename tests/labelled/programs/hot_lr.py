"""Linear model of river levels, plain gradient descent."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.88)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gauges = torch.randn(40000, 256)
    gauges[:, :8] *= 1.5
    level = gauges @ torch.randn(256, 16) / 16
    model = nn.Linear(256, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        loss = 0.5 * (model(gauges) - level).pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, f"{loss.item():.4g}")


if __name__ == "__main__":
    main()
