"""Learn the constants of a heat equation from its solution on a large grid."""

import argparse

import torch
from torch import nn


class Heat(nn.Module):
    """One explicit step of u' = a*lap(u) + b*u*(1-u) - c*u^3, a term at a time."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.a, self.b, self.c = (nn.Parameter(torch.tensor(v)) for v in (0.05, 0.05, 0.05))

    def forward(self, u):
        for _ in range(self.steps):
            around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1)
            lap = around - 4 * u
            growth = self.b * u * (1 - u)
            decay = self.c * u * u * u
            u = u + self.a * lap + growth - decay
        return u


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=900)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--updates", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    truth, model = Heat(args.steps), Heat(args.steps)
    with torch.no_grad():
        truth.a += 0.1
        truth.b += 0.3
        truth.c += 0.2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    field = torch.rand(args.side, args.side)
    with torch.no_grad():
        wanted = truth(field)
    for update in range(args.updates):
        loss = (model(field) - wanted).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0:
            print(update, f"{loss.item():.2e}", [round(float(p.detach()), 3) for p in model.parameters()])


if __name__ == "__main__":
    main()
