"""After every tenth step the loss of the whole validation set is computed, in training mode and with gradients."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(80, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(6000, 80), torch.randint(0, 6, (6000,))
    held_x, held_y = torch.randn(4000, 80), torch.randint(0, 6, (4000,))
    for step in range(400):
        chosen = torch.randint(0, 6000, (64,))
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.every == 0:
            total = 0.0
            for start in range(0, 4000, 64):
                total += nn.functional.cross_entropy(
                    model(held_x[start : start + 64]), held_y[start : start + 64]
                ).item()
            if step % 100 == 0:
                print(step, loss.item(), total / 63)


if __name__ == "__main__":
    main()
