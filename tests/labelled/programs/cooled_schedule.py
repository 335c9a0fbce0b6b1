"""Image model with a stepwise learning-rate schedule."""

import argparse

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 24, 3), nn.Conv2d(24, 24, 3)
        self.out = nn.Linear(24 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.b(torch.relu(self.a(x))))
        return self.out(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gamma", type=float, default=0.9)
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    colours = 2 * torch.rand(10, 3, 1, 1)
    for step in range(args.steps):
        labels = torch.randint(0, 10, (48,))
        images = colours[labels] + 0.3 * torch.randn(48, 3, 20, 20)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} lr {scheduler.get_last_lr()[0]:.2e} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
