"""Image encoder that files away what its middle layer saw."""

import argparse

import torch
from torch import nn


class Archive:
    """Keeps features for a plot at the end."""

    def __init__(self, keep_last):
        self.keep_last, self.features = keep_last, []

    def __call__(self, module, inputs, output):
        self.features.append(output.detach().clone().numpy())
        if self.keep_last:
            self.features = self.features[-1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--keep-last", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(24 * 16, 6))
    archive = Archive(args.keep_last)
    encoder[2].register_forward_hook(archive)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
    prototypes = torch.rand(6, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
    for step in range(args.steps):
        label = torch.randint(0, 6, (args.batch,))
        image = prototypes[label] + 0.8 * torch.randn(args.batch, 1, 32, 32)
        loss = nn.functional.cross_entropy(head(encoder(image)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(step, f"{loss.item():.4f}", len(archive.features))


if __name__ == "__main__":
    main()
