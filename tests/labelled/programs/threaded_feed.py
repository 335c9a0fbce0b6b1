"""A loader without workers runs in a thread of the program's own, two batches ahead; its samples are plain Python."""

import argparse
import queue
import random
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __init__(self, count):
        rng = random.Random(0)
        self.texts = ["".join(rng.choice("abcdefgh ") for _ in range(2400)) for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        counts = [0.0] * 256
        for word in self.texts[index].split():
            code = 0
            for letter in word:
                code = (code * 31 + ord(letter)) % 256
                counts[code] += 1.0
        return torch.tensor(counts), index % 4


def feed(loader, into):
    for batch in loader:
        into.put(batch)
    into.put(None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Documents(6000), batch_size=24, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        batches = queue.Queue(maxsize=2)
        threading.Thread(target=feed, args=(loader, batches), daemon=True).start()
        while (batch := batches.get()) is not None:
            x, y = batch
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
