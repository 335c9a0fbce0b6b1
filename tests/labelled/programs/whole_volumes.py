"""Two workers make large volumes quickly; sending them to the training process is what takes the time."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self, side):
        self.volume = torch.rand(side, side, side)

    def __len__(self):
        return 240

    def __getitem__(self, index):
        return self.volume + index % 2, index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Volumes(args.side), batch_size=4, num_workers=2)
    model = nn.Sequential(nn.AvgPool3d(args.side // 4), nn.Flatten(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x[:, None]), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
