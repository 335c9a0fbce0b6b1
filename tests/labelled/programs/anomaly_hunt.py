"""A program in which `set_detect_anomaly` was left on after a search for NaN."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(not args.plain)
    layers = [nn.Linear(48, 48) for _ in range(12)]
    model = nn.Sequential(
        *[part for layer in layers for part in (layer, nn.LayerNorm(48), nn.ReLU())], nn.Linear(48, 5)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(2048, 48), torch.randint(0, 5, (2048,))
    for step in range(300):
        rows = torch.randint(0, 2048, (64,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
