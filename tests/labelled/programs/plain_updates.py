"""Image model whose parameters are moved by hand after each backward pass."""

import argparse

import torch
from torch import nn


class Corners(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 20, 5, padding=2)
        self.second = nn.Conv2d(20, 20, 3, padding=1)
        self.last = nn.Linear(20 * 36, 4)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.last(x.flatten(1))


@torch.no_grad()
def update(model, velocity, lr, momentum):
    for parameter, v in zip(model.parameters(), velocity):
        v.mul_(momentum).add_(parameter.grad)
        parameter -= lr * v
    model.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Corners()
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(args.steps):
        corner = torch.randint(0, 4, (96,))
        images = torch.randn(96, 1, 24, 24)
        for quadrant in range(4):
            r, c = 12 * (quadrant // 2), 12 * (quadrant % 2)
            images[corner == quadrant, :, r : r + 12, c : c + 12] += 0.3
        loss = nn.functional.cross_entropy(model(images), corner)
        loss.backward()
        update(model, velocity, lr=0.001, momentum=0.9)
        if step % 30 == 0:
            print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    main()
