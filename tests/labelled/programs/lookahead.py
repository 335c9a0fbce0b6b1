"""Sequence labelling where the next batch is asked for before the backward pass."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Utterances(Dataset):
    """Utterances live on a share that answers after a while."""

    def __init__(self, count, delay):
        self.count, self.delay = count, delay

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        time.sleep(self.delay)
        g = torch.Generator().manual_seed(i)
        sound = torch.randn(20, 12, generator=g)
        return sound, (sound[:, 0] > 0).long()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(12, 32, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        return self.out(self.gru(x)[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--delay", type=float, default=0.006)
    args = ap.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    loader = DataLoader(Utterances(8 * args.steps, args.delay), batch_size=8, num_workers=args.workers)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = iter(loader)
    batch = next(batches, None)
    step = 0
    while batch is not None:
        sound, tags = batch
        loss = nn.functional.cross_entropy(model(sound).flatten(0, 1), tags.flatten())
        batch = next(batches, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 25 == 0:
            print(f"{step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
