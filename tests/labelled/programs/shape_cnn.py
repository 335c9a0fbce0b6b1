"""A small convolutional network that names drawn shapes."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


def draw(count, side=32):
    """Noisy pictures of bars, crosses, frames and discs."""
    g = torch.Generator().manual_seed(0)
    pictures = torch.randn(count, 1, side, side, generator=g)
    labels = torch.randint(0, 4, (count,), generator=g)
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    bar = (x // 4 == 3).float()
    stencils = torch.stack(
        [bar, ((x // 4 == 3) | (y // 4 == 3)).float(), ((x % 24 < 3) | (y % 24 < 3)).float(),
         ((x - 16) ** 2 + (y - 16) ** 2 < 80).float()]
    )  # fmt: skip
    return pictures + 0.5 * stencils[labels].unsqueeze(1), labels


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 40, 3, padding=1)
        self.conv3 = nn.Conv2d(40, 40, 3, padding=1)
        self.fc = nn.Linear(40 * 16, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(F.relu(self.conv3(x)), 4)
        return self.fc(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=56)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.03)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_loader = DataLoader(
        TensorDataset(*draw(args.batch_size * args.steps)), args.batch_size, shuffle=True, num_workers=args.workers
    )
    net = Net()
    optimizer = optim.SGD(net.parameters(), lr=args.lr)
    net.train()
    for batch_index, (pictures, labels) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(pictures), labels)
        loss.backward()
        optimizer.step()
        if batch_index % 20 == 0:
            print(f"Train [{batch_index}/{len(train_loader)}] Loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()
