"""Most pictures are there at once; one in 160 has to be asked for again, and that takes 300 ms."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    """Vectors from a server that sometimes does not answer the first time."""

    def __len__(self):
        return 64_000

    def __getitem__(self, index):
        time.sleep(0.3 if index % 160 == 7 else 0.001)
        features = torch.randn(256, generator=torch.Generator().manual_seed(index))
        return features, index % 6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Remote(), batch_size=8, shuffle=True, num_workers=2)
    for step, (features, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
