"""A small convolutional network on pictures that are all in memory."""

import argparse

import torch
from torch import nn


def block(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    pictures = torch.randn(512, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    labels = (pictures.mean((1, 2, 3)) > 0).long()
    model = nn.Sequential(
        block(3, 32, 1),
        block(32, 32, 1),
        block(32, 64, 2),
        block(64, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(1, args.steps + 1):
        batch = torch.randint(0, len(pictures), (8,))
        loss = nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)


if __name__ == "__main__":
    main()
