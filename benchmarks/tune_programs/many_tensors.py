"""A deep and narrow network: Adam walks over its many small parameters one after the other."""

import argparse

import torch
from torch import nn


class Residual(nn.Module):
    """A layer whose input is added to its output."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rows = torch.randn(4096, 32, generator=torch.Generator().manual_seed(1))
    targets = rows[:, :3].prod(1)
    model = nn.Sequential(*(Residual(32) for _ in range(32)), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        batch = torch.randint(0, len(rows), (32,))
        loss = nn.functional.mse_loss(model(rows[batch]).squeeze(1), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)


if __name__ == "__main__":
    main()
