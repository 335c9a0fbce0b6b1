"""Guess the speaker of a chat line, read as JSON lines in a stream."""

import argparse
import json
import os
import random
import tempfile
import unicodedata

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

WORDS = "hello ready maybe tomorrow river ticket window garden coffee yes no later sure café naïve".split()
SPEAKERS, BUCKETS = 4, 2048


def write_chat(path, lines):
    rng = random.Random(1)
    with open(path, "w") as f:
        for _ in range(lines):
            who = rng.randrange(SPEAKERS)
            text = " ".join(rng.choice(WORDS[who * 2 :]) for _ in range(70))
            f.write(json.dumps({"who": who, "text": text, "meta": {"ts": rng.random(), "room": "main"}}) + "\n")


class ChatStream(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path) as f:
            for line in f:
                row = json.loads(line)
                plain = unicodedata.normalize("NFKD", row["text"]).encode("ascii", "ignore").decode().lower()
                counts = [0.0] * BUCKETS
                for n in (3, 4, 5):
                    for i in range(len(plain) - n):
                        counts[hash_gram(plain[i : i + n])] += 1.0
                yield torch.tensor(counts).log1p(), row["who"]


def hash_gram(gram):
    value = 5381
    for c in gram:
        value = value * 33 + ord(c) & 0xFFFFFF
    return value % BUCKETS


class SpeakerModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(BUCKETS, 96)
        self.outer = nn.Linear(96, SPEAKERS)

    def forward(self, counts):
        return self.outer(torch.relu(self.inner(counts)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=1400)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "chat.jsonl")
        write_chat(path, args.lines)
        model = SpeakerModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step, (counts, who) in enumerate(DataLoader(ChatStream(path), batch_size=10, num_workers=args.workers)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(counts), who)
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
