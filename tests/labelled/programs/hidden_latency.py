"""Colour regression on patches whose bytes come over the network."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, count, wait):
        self.count, self.wait = count, wait

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        time.sleep(self.wait)
        g = torch.Generator().manual_seed(i)
        patch = torch.rand(3, 32, 32, generator=g) * torch.rand(3, 1, 1, generator=g)
        return patch, patch.mean((1, 2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--wait", type=float, default=0.001)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)

    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 1024, 3),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Patches(16 * args.steps, args.wait), batch_size=16, num_workers=args.workers)
    for step, (patch, colour) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(patch), colour)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
