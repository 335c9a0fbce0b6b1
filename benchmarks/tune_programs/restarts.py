"""Epochs are short, and in each of them new workers read the index of the corpus again."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Corpus(Dataset):
    """Lines of a corpus; the index that finds them is built by whoever reads first."""

    def __init__(self, count=400):
        self.count = count
        self.index = None

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if self.index is None:
            draw = random.Random(3)
            self.index = sorted((draw.random(), place) for place in range(120_000))
        key, place = self.index[number * 97]
        line = torch.randn(256, generator=torch.Generator().manual_seed(place))
        return line, int(key * 5000) % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Corpus(), batch_size=16, shuffle=True, num_workers=2)
    step = 0
    while step < args.steps:
        for lines, kinds in loader:
            loss = nn.functional.cross_entropy(model(lines), kinds)
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
