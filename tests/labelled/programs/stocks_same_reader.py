"""Shelf-stock model; the same reader object serves training and the check after each short epoch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shelves(Dataset):
    def __init__(self, count):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(count, 128, generator=g)
        self.y = (self.x[:, :16].abs().sum(1, keepdim=True) - 12.8) / 4

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class StockModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.decode = nn.Linear(width, 1)

    def forward(self, x, looks=1):
        """With several looks the input is jittered and the answers are averaged."""
        if looks == 1:
            return self.decode(self.encode(x))
        return torch.stack([self.decode(self.encode(x + 0.05 * torch.randn_like(x))) for _ in range(looks)]).mean(0)


def run_epoch(model, reader, optimizer=None, looks=1):
    total = 0.0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in reader:
            loss = nn.functional.mse_loss(model(x, looks), y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
    return total / len(reader)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--looks", type=int, default=8)
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    reader = DataLoader(Shelves(320), batch_size=32, shuffle=True)
    model = StockModel(1200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(args.epochs):
        trained = run_epoch(model, reader, optimizer)
        checked = float("nan") if args.no_check else run_epoch(model, reader, looks=args.looks)
        print(f"epoch {epoch}: train {trained:.3f} check {checked:.3f}")
