"""Predict which baskets come back, from bags of item numbers of different length."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ITEMS = 2000


class Baskets(Dataset):
    def __init__(self, count):
        rng = random.Random(0)
        self.bags = [[rng.randrange(1, ITEMS) for _ in range(rng.randrange(40, 140))] for _ in range(count)]
        self.back = [float(sum(1 for item in bag if item % 5 == 0) / len(bag) > 0.2) for bag in self.bags]

    def __len__(self):
        return len(self.bags)

    def __getitem__(self, i):
        return self.bags[i], self.back[i]


def pad_and_weigh(samples):
    """Pad to the longest bag and weigh each item by how rare it is within the batch."""
    longest = max(len(bag) for bag, _ in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    weights = torch.zeros(len(samples), longest)
    counts = {}
    for bag, _ in samples:
        for item in bag:
            counts[item] = counts.get(item, 0) + 1
    for row, (bag, _) in enumerate(samples):
        for column, item in enumerate(bag):
            ids[row, column] = item
            weights[row, column] = 1.0 / counts[item]
    return ids, weights, torch.tensor([back for _, back in samples])


def pad_and_weigh_fast(samples):
    bags = [torch.tensor(bag) for bag, _ in samples]
    ids = nn.utils.rnn.pad_sequence(bags, batch_first=True)
    counts = torch.bincount(ids.flatten(), minlength=ITEMS)
    return ids, (ids > 0) / counts[ids].clamp(min=1), torch.tensor([back for _, back in samples])


class BagModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(ITEMS, 16, padding_idx=0)
        self.out = nn.Linear(16, 1)

    def forward(self, ids, weights):
        mask = (ids > 0).float().unsqueeze(-1)
        pooled = (self.embed(ids) * mask * (0.5 + weights.unsqueeze(-1))).sum(1) / mask.sum(1)
        return self.out(pooled).squeeze(-1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--baskets", type=int, default=2560)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--fast-padding", action="store_true")
    args = parser.parse_args()
    collate = pad_and_weigh_fast if args.fast_padding else pad_and_weigh
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = BagModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DataLoader(Baskets(args.baskets), args.batch, num_workers=args.workers, collate_fn=collate)
    for step, (ids, weights, back) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids, weights), back)
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(step, f"{loss.item():.3f}")
