"""Epochs of eight batches with three workers: they are started anew for each epoch."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Episodes(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return torch.from_numpy(np.sort(rng.standard_normal((3, 64)).astype(np.float32))), index % 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Episodes(), batch_size=16, shuffle=True, num_workers=3, persistent_workers=args.kept)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
