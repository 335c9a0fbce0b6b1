"""Train a tagger, then report through the exit status whether the target was met."""

import argparse
import sys

import torch
from torch import nn


def build(vocab=500, tags=12):
    return nn.Sequential(nn.Embedding(vocab, 128), nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, tags))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--target", type=float, default=0.001)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tagger = build()
    optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
    tag_of = torch.randint(0, 12, (500,))
    for step in range(args.steps):
        words = torch.randint(0, 500, (40, 50))
        loss = nn.functional.cross_entropy(tagger(words).flatten(0, 1), tag_of[words].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}, target {args.target}")
    if loss.item() > args.target:
        print("target missed", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
