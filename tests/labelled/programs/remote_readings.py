"""Forecast the next reading of a meter from rows kept in a remote table."""

import argparse
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class MeterTable(Dataset):
    def __init__(self, rows, round_trip):
        torch.manual_seed(1)
        self.x = torch.randn(rows, 48)
        self.y = self.x[:, :4].sum(1, keepdim=True)
        self.round_trip = round_trip

    def query(self, row):
        time.sleep(self.round_trip)
        return self.x[row], self.y[row]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.query(row)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--round-trip", type=float, default=0.004)
    p.add_argument("--steps", type=int, default=90)
    opt = p.parse_args()
    torch.set_num_threads(1)

    table = MeterTable(8 * opt.steps, opt.round_trip)
    reader = DataLoader(table, batch_size=8, shuffle=True, num_workers=opt.workers)
    net = nn.Sequential(nn.Linear(48, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, (x, y) in enumerate(reader):
        loss = nn.functional.mse_loss(net(x), y)
        sgd.zero_grad(set_to_none=True)
        loss.backward()
        sgd.step()
        if step % 30 == 0:
            print(step, round(loss.item(), 4))
