"""Regression on sensor logs in the order they were recorded."""

import argparse

import torch
from torch import nn


def logs(batches, broken):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(batches, 128, 32, generator=g)
    y = x[..., :1] * x[..., 1:2] + x[..., 2:3]
    if broken >= 0:
        x[broken, 17, 5] = float("nan")
    return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=90)
    parser.add_argument("--broken", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 1600), nn.ReLU(), nn.Linear(1600, 1600), nn.ReLU(), nn.Linear(1600, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for number, (x, y) in enumerate(zip(*logs(args.batches, args.broken))):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if number % 15 == 0:
            print(f"batch {number}, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
