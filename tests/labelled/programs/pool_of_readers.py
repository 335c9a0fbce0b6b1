"""The program's own pool of processes reads ahead: samples come from `imap`, and each waits for a far disk."""

import argparse
import multiprocessing
import time

import numpy as np
import torch
from torch import nn

PAUSE_S = 0.01


def read(number):
    time.sleep(PAUSE_S)
    return np.random.default_rng(number).standard_normal(64).astype(np.float32), number % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--readers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with multiprocessing.get_context("fork").Pool(args.readers) as pool:
        group = []
        for x, y in pool.imap(read, range(1600)):
            group.append((x, y))
            if len(group) < 16:
                continue
            inputs, wanted = torch.tensor(np.stack([a for a, _ in group])), torch.tensor([b for _, b in group])
            group = []
            loss = nn.functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
