"""Sensor windows come from an archive that takes 6 ms to answer; two workers ask it."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Archive(Dataset):
    """Windows of 128 readings and whether they rise."""

    def __len__(self):
        return 50_000

    def __getitem__(self, index):
        time.sleep(0.006)  # the network
        window = torch.randn(128, generator=torch.Generator().manual_seed(index))
        return window, int(window.sum() > 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Archive(), batch_size=8, shuffle=True, num_workers=2)
    for step, (windows, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(windows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
