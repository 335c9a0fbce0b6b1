"""Metric learning against a bank of everything seen so far."""

import argparse
import math

import torch
from torch import nn


class BankModel(nn.Module):
    def __init__(self, width, limit):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, width))
        self.filled, self.limit = 0, limit
        self.keys = torch.zeros(20_000, width)
        self.labels = torch.zeros(20_000, dtype=torch.long)

    def remember(self, z, labels):
        if self.filled + len(z) > self.limit:
            self.filled = 0
        self.keys[self.filled : self.filled + len(z)] = z
        self.labels[self.filled : self.filled + len(z)] = labels
        self.filled += len(z)
        return self.keys[: self.filled], self.labels[: self.filled]

    def forward(self, x, labels):
        z = nn.functional.normalize(self.embed(x), dim=1)
        keys, known = self.remember(z.detach(), labels)
        similarity = z @ keys.T / 0.2
        positive = (labels[:, None] == known[None, :]).float()
        contrast = similarity - similarity.logsumexp(1, keepdim=True) + math.log(len(keys))
        return -((positive * contrast).sum(1) / positive.sum(1)).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=20_000, help="most keys the bank holds")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = BankModel(256, args.limit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    centres = torch.randn(12, 48)
    for step in range(args.steps):
        labels = torch.randint(0, 12, (args.batch,))
        x = centres[labels] + 1.5 * torch.randn(args.batch, 48)
        loss = model(x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, f"loss {loss.item():.3f}", f"bank {model.filled}")


if __name__ == "__main__":
    main()
