"""Batches come from a Python generator that parses lines of text, as in other frameworks' input pipelines."""

import argparse
import json
import random
import re

import torch
from torch import nn

PATTERN = re.compile(r"(\w+)=([-\d.]+)")


def lines(count):
    rng = random.Random(0)
    for _ in range(count):
        yield json.dumps({"raw": " ".join(f"f{n}={rng.gauss(0, 1):.4f}" for n in range(24)), "y": rng.randrange(3)})


def examples(source):
    for line in source:
        row = json.loads(line)
        values = {name: float(value) for name, value in PATTERN.findall(row["raw"])}
        yield [values[f"f{n}"] for n in range(24)], row["y"]


def batched(stream, size):
    group = []
    for one in stream:
        group.append(one)
        if len(group) == size:
            yield torch.tensor([x for x, _ in group]), torch.tensor([y for _, y in group])
            group = []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cached", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stored = list(batched(examples(lines(6400)), 64)) if args.cached else None
    for epoch in range(3):
        for x, y in stored or batched(examples(lines(6400)), 64):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
