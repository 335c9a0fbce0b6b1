"""Few-shot learning: every episode is a small data set of its own, read for one short epoch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_episodes(images=48, dims=64, ways=4):
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(ways, dims, generator=g)
    labels = torch.arange(images) % ways
    return TensorDataset(centres[labels] + 2 * torch.randn(images, dims, generator=g), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=36)
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(
        make_episodes(),
        batch_size=12,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.persistent,
    )
    embed = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(embed.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            loss = nn.functional.cross_entropy(embed(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"episode {epoch}: {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
