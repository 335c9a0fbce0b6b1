"""Segment cells with a small fully convolutional network."""

import argparse

import torch
from torch import nn


def cells(batch, side):
    """Blurry blobs on noise, with their masks."""
    axis = torch.arange(side).float()
    centre = torch.rand(batch, 2) * side
    radius = 4 + 6 * torch.rand(batch, 1, 1)
    distance = (axis[None, :, None] - centre[:, :1, None]) ** 2 + (axis[None, None, :] - centre[:, 1:, None]) ** 2
    mask = (distance < radius**2).float()
    return (mask + torch.randn_like(mask)).unsqueeze(1), mask.unsqueeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss()
    for step in range(args.steps):
        image, mask = cells(args.batch, 64)
        optimizer.zero_grad()
        loss = criterion(net(image), mask)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
