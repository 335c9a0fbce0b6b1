"""Learn to tell two kinds of noise apart from their order statistics."""

import argparse

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", type=int, default=2)
parser.add_argument("--steps", type=int, default=130)
parser.add_argument("--length", type=int, default=30000)


class Signals(Dataset):
    def __init__(self, size, length):
        self.size, self.length = size, length

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        heavy = index % 2
        signal = rng.standard_t(4, self.length) if heavy else rng.normal(0, 1.2, self.length)
        ranked = np.sort(signal)
        quantiles = ranked[:: self.length // 100][:100]
        return torch.tensor(quantiles, dtype=torch.float32), torch.tensor([float(heavy)])


def train(args):
    loader = DataLoader(Signals(16 * args.steps, args.length), batch_size=16, num_workers=args.num_workers)
    model = torch.nn.Sequential(torch.nn.Linear(100, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    bce = torch.nn.BCEWithLogitsLoss()
    total = 0.0
    for x, y in loader:
        loss = bce(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print("mean loss", total / len(loader))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(parser.parse_args())
