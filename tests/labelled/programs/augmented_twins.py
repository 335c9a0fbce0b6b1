"""Self-supervised learning of pictures: two random views of each, pulled together and the rest pushed apart."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Twins(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(1)
        self.pictures = rng.random((count, 3, 48, 48), dtype=np.float32)

    def __len__(self):
        return len(self.pictures)

    def view(self, picture):
        top, left = random.randint(0, 15), random.randint(0, 15)
        crop = picture[:, top : top + 32, left : left + 32]
        if random.random() < 0.5:
            crop = crop[:, :, ::-1]
        blurred = crop.copy()
        for _ in range(8):
            for axis in (1, 2):
                blurred = 0.25 * np.roll(blurred, 1, axis) + 0.5 * blurred + 0.25 * np.roll(blurred, -1, axis)
        brightness = 1 + random.uniform(-0.4, 0.4)
        return torch.from_numpy(np.clip(blurred * brightness, 0, 1).astype(np.float32))

    def __getitem__(self, index):
        return self.view(self.pictures[index]), self.view(self.pictures[index])


def nt_xent(one, other, temperature=0.2):
    joined = nn.functional.normalize(torch.cat([one, other]), dim=1)
    scores = joined @ joined.T / temperature
    scores.fill_diagonal_(-1e9)
    half = len(one)
    partner = torch.cat([torch.arange(half, 2 * half), torch.arange(half)])
    return nn.functional.cross_entropy(scores, partner)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(784, 64),
    )
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Twins(1280), batch_size=32, shuffle=True, drop_last=True, num_workers=args.workers)
    for epoch in range(args.epochs):
        for one, other in loader:
            loss = nt_xent(encoder(one), encoder(other))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
