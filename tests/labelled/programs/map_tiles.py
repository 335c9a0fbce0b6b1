"""Predict land cover from map tiles that come from a tile service."""

import argparse
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class TileService:
    """Stands for the client of a remote service: an answer takes a few milliseconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def get(self, number):
        time.sleep(self.seconds)
        g = torch.Generator().manual_seed(number)
        cover = number * 7 % 3
        tile = torch.rand(3, 24, 24, generator=g)
        tile[cover] *= 1.5
        return tile, cover


class Tiles(Dataset):
    def __init__(self, service, count):
        self.service, self.count = service, count

    def __getitem__(self, i):
        return self.service.get(i)

    def __len__(self):
        return self.count


def main(args):
    torch.set_num_threads(1)
    tiles = DataLoader(
        Tiles(TileService(args.answer_time), args.tiles), batch_size=args.batch, num_workers=args.workers
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    optimiser = optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    for images, cover in tiles:
        optimiser.zero_grad()
        loss = nn.CrossEntropyLoss()(model(images), cover)
        loss.backward()
        optimiser.step()
        seen += len(images)
    print(f"{seen} tiles, last loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tiles", type=int, default=960)
    parser.add_argument("--answer-time", type=float, default=0.006)
    main(parser.parse_args())
