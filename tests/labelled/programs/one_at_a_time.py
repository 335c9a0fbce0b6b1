"""Stochastic gradient descent in the strict sense: one sample a step, through a deep narrow network."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = []
    for _ in range(16):
        layers += [nn.Linear(12, 12), nn.LayerNorm(12), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(1200, 12)
    y = x.sum(1, keepdim=True)
    total = 0.0
    for row in range(len(x)):
        loss = nn.functional.mse_loss(model(x[row : row + 1]), y[row : row + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if row % 300 == 299:
            print(row, total / (row + 1))


if __name__ == "__main__":
    main()
