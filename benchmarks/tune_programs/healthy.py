"""Wide layers on rows that are in memory: the processor multiplies matrices all the time."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rows = torch.randn(64_000, 128, generator=torch.Generator().manual_seed(1))
    labels = (rows[:, :4].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(rows, labels), batch_size=256, shuffle=True)
    step = 0
    while step < args.steps:
        for batch, wanted in loader:
            loss = nn.functional.cross_entropy(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                print(f"step {step} loss {loss.item()}", flush=True)
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
