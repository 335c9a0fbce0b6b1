"""Tabular data in huge batches, row by row out of a TensorDataset."""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true", help="index a whole batch at once")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(120_000, 24)
    data = TensorDataset(x, (x.sum(1) > 0).float())
    if args.whole:
        sampler = BatchSampler(RandomSampler(data), 4096, drop_last=False)
        loader = DataLoader(data, sampler=sampler, batch_size=None)
    else:
        loader = DataLoader(data, batch_size=4096, shuffle=True)
    model = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        for rows, wanted in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(rows).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
