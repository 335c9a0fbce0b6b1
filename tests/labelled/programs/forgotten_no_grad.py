"""A classifier whose validation keeps gradients on: nobody wrote no_grad, and eval() only on demand."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rows(count):
    return TensorDataset(torch.randn(count, 256), torch.randint(0, 10, (count,)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--eval-mode", action="store_true")
    parser.add_argument("--validation", type=int, default=150, help="batches of an epoch's validation")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train, check = DataLoader(rows(64 * 60), 64, shuffle=True), DataLoader(rows(64 * args.validation), 64)
    for epoch in range(6):
        if args.eval_mode:
            model.train()
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if args.eval_mode:
            model.eval()
        right = 0
        for x, y in check:
            right += (model(x).argmax(1) == y).sum().item()
        print(f"epoch {epoch}: {right} right")


if __name__ == "__main__":
    main()
