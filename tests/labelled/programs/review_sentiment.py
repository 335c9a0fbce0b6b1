"""Bag-of-bigrams sentiment model over made-up product reviews."""

import argparse
import random
import re
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GOOD = "great lovely sturdy quick bright gentle honest fresh".split()
BAD = "broken dull slow noisy sticky flimsy stale rude".split()
FILL = "the a this box arrived with my order and then it was on table for two days".split()
VOCAB = 4096


def write_review(rng):
    positive = rng.random() < 0.5
    words = [rng.choice(GOOD if positive else BAD) if rng.random() < 0.1 else rng.choice(FILL) for _ in range(240)]
    return " ".join(words).capitalize() + ".", int(positive)


class Reviews(Dataset):
    def __init__(self, count):
        rng = random.Random(3)
        self.items = [write_review(rng) for _ in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        text, label = self.items[index]
        words = [re.sub(r"[^a-z]", "", w.lower()) for w in text.split()]
        grams = Counter(words + [f"{a}_{b}" for a, b in zip(words, words[1:])])
        vector = torch.zeros(VOCAB)
        for gram, times in grams.items():
            vector[sum(ord(c) * 31**i for i, c in enumerate(gram)) % VOCAB] += times
        return vector.log1p(), label


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = nn.Sequential(nn.Linear(VOCAB, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.loader = DataLoader(Reviews(args.reviews), args.batch, shuffle=True, num_workers=args.workers)

    def train_step(self, vectors, labels):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(vectors), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self):
        for number, (vectors, labels) in enumerate(self.loader):
            loss = self.train_step(vectors, labels)
            if number % 25 == 0:
                print(f"step {number:4d} loss {loss:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--reviews", type=int, default=720)
    parser.add_argument("--batch", type=int, default=8)
    Trainer(parser.parse_args()).fit()
