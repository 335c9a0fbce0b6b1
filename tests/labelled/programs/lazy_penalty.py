"""Critic with a smoothness penalty that is applied lazily, on every sixteenth update."""

import argparse

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x)


def smoothness(critic, samples, repeats):
    total = 0.0
    for _ in range(repeats):
        x = samples + 0.1 * torch.randn_like(samples)
        x.requires_grad_()
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        total = total + (slope.norm(dim=1) - 1).square().mean()
    return total / repeats


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=14)
    parser.add_argument("--updates", type=int, default=144)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    critic = Critic(384)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.005)
    for update in range(1, args.updates + 1):
        real = torch.randn(224, 32) + 0.5
        fake = torch.randn(224, 32)
        loss = nn.functional.softplus(-critic(real)).mean() + nn.functional.softplus(critic(fake)).mean()
        if args.every and update % args.every == 0:
            loss = loss + 0.1 * smoothness(critic, real, args.repeats)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 32 == 1:
            print(f"update {update}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
