"""Pieces of a large scan are cut and normalised with numpy: cheap to make, dear to hand over between processes."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 64


class Pieces(Dataset):
    """Cubes out of one scan, each normalised, and its mean as what is to be learned."""

    def __init__(self):
        self.scan = np.random.default_rng(7).normal(size=(160, 160, 160)).astype(np.float32)

    def __len__(self):
        return 96**3

    def __getitem__(self, index):
        z, y, x = np.unravel_index(index, (96, 96, 96))
        piece = self.scan[z : z + SIDE, y : y + SIDE, x : x + SIDE]
        mean = piece.mean()
        return (piece - mean) / piece.std(), np.float32(mean * 100)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.AvgPool3d(8), nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Pieces(), batch_size=8, shuffle=True, num_workers=2)
    for step, (pieces, means) in enumerate(loader, 1):
        loss = nn.functional.mse_loss(model(pieces).squeeze(1), means)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
