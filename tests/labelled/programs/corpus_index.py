"""Word model on a corpus whose lines are indexed first."""

import argparse
import os
import random
import tempfile

import torch
from torch import nn


def write_corpus(path, lines):
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(300)]
    chunk = [" ".join(rng.choices(vocabulary, k=12)) + "\n" for _ in range(500)]
    with open(path, "w") as f:
        for _ in range(lines // len(chunk)):
            f.writelines(chunk)


def index_corpus(path):
    """Offsets of all lines and a vocabulary by frequency."""
    offsets, counts, position = [], {}, 0
    with open(path, "rb") as f:
        for line in f:
            offsets.append(position)
            position += len(line)
            for word in line.decode().strip().lower().split(" "):
                counts[word] = counts.get(word, 0) + 1
    ranked = sorted(counts, key=lambda w: (-counts[w], w))
    return offsets, {word: n for n, word in enumerate(ranked)}


class Corpus:
    def __init__(self, path):
        self.path = path
        self.offsets, self.vocabulary = index_corpus(path)
        self.head = [line.split() for line in open(path).readlines()[:500]]
        self.ids = torch.tensor([[self.vocabulary[w] for w in line[:12]] for line in self.head])

    def batch(self, size):
        rows = self.ids[torch.randint(0, len(self.ids), (size,))]
        return rows[:, :-1], rows[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "corpus.txt")
        write_corpus(path, args.lines)
        corpus = Corpus(path)
        words = len(corpus.vocabulary)
        model = nn.Sequential(nn.Embedding(words, 96), nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, words))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(args.steps):
            before, after = corpus.batch(96)
            loss = nn.functional.cross_entropy(model(before).flatten(0, 1), after.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(step, f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
