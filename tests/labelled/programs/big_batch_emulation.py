"""Train with an effective batch four times the one that is held in memory."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader, lr, accumulate):
        self.model = model
        self.loader = loader
        self.accumulate = accumulate
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()
        self.updates = 0

    def micro_step(self, x, y):
        loss = self.criterion(self.model(x), y) / self.accumulate
        loss.backward()
        return loss.item() * self.accumulate

    def run_epoch(self):
        running = 0.0
        for i, (x, y) in enumerate(self.loader, start=1):
            running += self.micro_step(x, y)
            if i % self.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.updates += 1
        return running / len(self.loader)

    def fit(self, epochs):
        for epoch in range(epochs):
            print(f"epoch {epoch}: {self.run_epoch():.4f} after {self.updates} updates")


def rings(count):
    """Points on four noisy rings in a 32-dimensional space."""
    g = torch.Generator().manual_seed(9)
    label = torch.randint(0, 4, (count,), generator=g)
    direction = nn.functional.normalize(torch.randn(count, 32, generator=g), dim=1)
    return direction * (label.float() + 1).unsqueeze(1) * 2, label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 4))
    loader = DataLoader(TensorDataset(*rings(2560)), batch_size=32, shuffle=True)
    Trainer(model, loader, lr=0.05, accumulate=args.accumulate).fit(args.epochs)


if __name__ == "__main__":
    main()
