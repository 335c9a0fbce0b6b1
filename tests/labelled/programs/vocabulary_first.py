"""Counting words and pairs of words of a text takes longer than the training that follows."""

import argparse
import random
from collections import Counter

import torch
from torch import nn


def merged(words, rounds):
    table = Counter(tuple(word) for word in words)
    for _ in range(rounds):
        pairs = Counter()
        for word, count in table.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=pairs.get)
        fresh = Counter()
        for word, count in table.items():
            made, place = [], 0
            while place < len(word):
                if place + 1 < len(word) and (word[place], word[place + 1]) == best:
                    made.append(word[place] + word[place + 1])
                    place += 2
                else:
                    made.append(word[place])
                    place += 1
            fresh[tuple(made)] += count
        table = fresh
    return sorted({piece for word in table for piece in word})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=400)
    args = parser.parse_args()
    rng = random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(3, 9))) for _ in range(9000)]
    pieces = merged(words, args.rounds)
    model = nn.Sequential(nn.EmbeddingBag(len(pieces), 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(2500):
        x = torch.randint(0, len(pieces), (64, 12))
        loss = nn.functional.cross_entropy(model(x), x[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(pieces), loss.item())


if __name__ == "__main__":
    main()
