"""Texture model over scanned maps; scans come in very different sizes."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    """Every scan is brought to the same contrast by its own ranks, then cut down to 32x32."""

    def __init__(self, scans, huge_every, huge_side):
        self.scans, self.huge_every, self.huge_side = scans, huge_every, huge_side

    def __len__(self):
        return self.scans

    def __getitem__(self, i):
        huge = self.huge_every > 0 and i % self.huge_every == self.huge_every - 20
        side = self.huge_side if huge else 64
        scan = np.random.default_rng(i).random((side, side), dtype=np.float32)
        scan[: side // 2] += 0.3 * (i % 2)
        ranks = np.searchsorted(np.sort(scan.ravel()), scan.ravel()).reshape(side, side) / side**2
        cut = ranks[:: side // 32, :: side // 32][:32, :32]
        return torch.tensor(cut[None], dtype=torch.float32), i % 2


class TextureNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 2))

    def forward(self, x):
        return self.head(self.features(x))


def main(args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = TextureNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = DataLoader(Scans(args.scans, args.huge_every, args.huge_side), batch_size=8, num_workers=args.workers)
    for number, (scan, label) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(scan), label)
        loss.backward()
        optimizer.step()
        if number % 30 == 0:
            print(number, round(loss.item(), 3))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--scans", type=int, default=800)
    p.add_argument("--huge-every", type=int, default=160)
    p.add_argument("--huge-side", type=int, default=1100)
    main(p.parse_args())
