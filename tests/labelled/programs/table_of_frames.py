"""Rows of a pandas data frame, taken one by one with `iloc` and converted column by column."""

import argparse

import numpy as np
import pandas
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Frame(Dataset):
    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        row = self.frame.iloc[index]
        x = torch.tensor([float(row[f"c{n}"]) for n in range(60)])
        return x, torch.tensor(float(row["y"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.standard_normal((6000, 60)), columns=[f"c{n}" for n in range(60)])
    frame["y"] = frame.sum(axis=1)
    loader = DataLoader(Frame(frame), batch_size=50, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
