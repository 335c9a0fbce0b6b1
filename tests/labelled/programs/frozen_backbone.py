"""A large frozen network makes features under `no_grad`; only a small head is trained on them."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    backbone = nn.Sequential(
        nn.Conv2d(3, 48, 5, stride=2), nn.ReLU(), nn.Conv2d(48, 48, 5, stride=2), nn.ReLU(), nn.Flatten()
    )
    backbone.eval()
    head = nn.Linear(48 * 13 * 13, 20)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    pictures, labels = torch.rand(600, 3, 64, 64), torch.randint(0, 20, (600,))
    for epoch in range(4):
        for rows in torch.randperm(600).split(20):
            with torch.no_grad():
                features = backbone(pictures[rows])
            loss = nn.functional.cross_entropy(head(features), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
