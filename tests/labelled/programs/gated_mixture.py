"""A gated mixture of simple curves, fitted to a long recording."""

import torch
from torch import nn


class Curves(nn.Module):
    def __init__(self, kinds=3):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, kinds))
        self.shift = nn.Parameter(torch.zeros(kinds))
        self.weight = nn.Parameter(torch.full((kinds,), 0.3))

    def forward(self, x):
        out = torch.zeros_like(x)
        for scale, shift, weight in zip(self.scale, self.shift, self.weight):
            z = scale * x + shift
            gate = 0.5 * (1 + torch.clamp(0.8 * z, -1, 1))
            out = out + weight * gate * (z - 0.1 * z * z)
        return out


def main():
    torch.manual_seed(0)
    model = Curves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.linspace(-2, 2, 400_000)
    recording = torch.where(x > 0, 1.3 * x, 0.2 * x)
    for step in range(72):
        optimizer.zero_grad()
        error = model(x) - recording
        loss = (error * error).mean()
        loss.backward()
        optimizer.step()
        if step % 6 == 0:
            print("step", step, "loss", round(loss.item(), 5))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
