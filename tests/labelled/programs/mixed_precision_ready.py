"""Image model with the usual autocast and GradScaler lines, switched on only where a GPU is present."""

import argparse

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.body(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=90)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    use_amp = device == "cuda"
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1), Residual(24), Residual(24), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 5),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=use_amp)
    hues = torch.rand(5, 3, 1, 1, device=device)

    for i in range(args.iterations):
        labels = torch.randint(0, 5, (args.batch,), device=device)
        images = hues[labels] + torch.randn(args.batch, 3, 32, 32, device=device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device, enabled=use_amp):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 15 == 0:
            print(f"iteration {i} loss {loss.item():.4f} scale {scaler.get_scale()}")


if __name__ == "__main__":
    main()
