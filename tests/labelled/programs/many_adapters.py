"""One small adapter per customer on top of a shared encoder; all of them are trained together."""

import argparse

import torch
from torch import nn


class Adapters(nn.Module):
    def __init__(self, customers, width):
        super().__init__()
        self.shared = nn.Linear(20, width)
        self.own = nn.ParameterList(nn.Parameter(0.1 * torch.randn(width)) for _ in range(customers))
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(customers))

    def forward(self, x):
        h = torch.relu(self.shared(x))
        own, bias = torch.stack(list(self.own)), torch.stack(list(self.bias))
        return h @ own.T + bias.mean(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--customers", type=int, default=300)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Adapters(args.customers, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False, fused=args.fused)
    taste = torch.randn(20, args.customers) / 5
    for step in range(args.steps):
        x = torch.randn(8, 20)
        loss = nn.functional.mse_loss(model(x), x @ taste)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
