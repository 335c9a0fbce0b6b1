"""Spot faulty cells on simulated solar panels."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Panels(Dataset):
    """Thermal pictures, smoothed and normalised before use."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        picture = rng.normal(0, 1, (96, 96))
        faulty = i % 3 == 0
        if faulty:
            r, c = rng.integers(10, 80, 2)
            picture[r : r + 10, c : c + 10] += 3
        for _ in range(6):
            picture = sum(np.roll(picture, s, a) for s in (-1, 0, 1) for a in (0, 1)) / 6
        picture = (picture - np.median(picture)) / (picture.std() + 1e-6)
        return torch.tensor(picture[None, ::2, ::2], dtype=torch.float32), float(faulty)


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(128, 1)
    )


def run():
    cli = argparse.ArgumentParser()
    cli.add_argument("--workers", type=int, default=1)
    cli.add_argument("--panels", type=int, default=1440)
    cli.add_argument("--lr", type=float, default=0.005)
    flags = cli.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(11)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=0.9)
    loader = DataLoader(Panels(flags.panels), 16, num_workers=flags.workers, prefetch_factor=4)
    for i, (picture, faulty) in enumerate(loader):
        logits = model(picture).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, faulty.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 20 == 19:
            print(i + 1, f"{loss.item():.3f}")


if __name__ == "__main__":
    run()
