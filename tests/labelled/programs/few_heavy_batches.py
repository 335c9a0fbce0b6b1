"""Two workers, epochs of twelve batches, and slow samples: training does not wait for new workers."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        scan = rng.standard_normal(60_000)
        for _ in range(60):
            scan = np.sort(scan) + 1e-3 * scan[::-1]
        return torch.tensor(scan[::600], dtype=torch.float32), index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Scans(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=args.kept)
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(6):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
