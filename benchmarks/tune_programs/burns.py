"""Reviews are turned into hashed word pairs in pure Python: two workers burn both cores. No review comes twice."""

import argparse
import random
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = [f"{start}{end}" for start in "bcdfghjklm" for end in ("ad", "elo", "ine", "or", "uth", "yre", "is", "om")]
BUCKETS = 2048


def review(number):
    """Return the words of a review; its number is its seed."""
    draw = random.Random(number)
    return [draw.choice(WORDS) for _ in range(2600)]


class Reviews(Dataset):
    """Counts of hashed word pairs, and whether the review is a good one."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        words = review(index)
        counts = [0.0] * BUCKETS
        for first, second in zip(words, words[1:]):
            counts[zlib.crc32(f"{first} {second}".encode()) % BUCKETS] += 1.0
        return torch.tensor(counts), int(words.count("belo") > 32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(BUCKETS, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Reviews(), batch_size=16, shuffle=True, num_workers=2)
    for step, (counts, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(counts), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
