"""Stream log records from shards; each worker takes its own shards."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, shards, rows, pause):
        self.shards, self.rows, self.pause = shards, rows, pause

    def __iter__(self):
        info = get_worker_info()
        mine = range(self.shards) if info is None else range(info.id, self.shards, info.num_workers)
        for shard in mine:
            yield from self.open(shard)

    def open(self, shard):
        g = torch.Generator().manual_seed(shard)
        for _ in range(self.rows):
            time.sleep(self.pause)
            row = torch.randn(64, generator=g)
            yield row, row[:8].sum().unsqueeze(0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--pause", type=float, default=0.004)
    p.add_argument("--shards", type=int, default=32)
    args = p.parse_args()
    torch.set_num_threads(1)

    loader = DataLoader(Shards(args.shards, 40, args.pause), batch_size=10, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for row, total in loader:
        loss = (model(row) - total).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{len(losses)} steps, loss {losses[0]:.2f} -> {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
