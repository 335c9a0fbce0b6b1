"""Generator against discriminator on a ring of blobs."""

import argparse
import math

import torch
from torch import nn


def real_points(count):
    angle = torch.randint(0, 8, (count,)) * (2 * math.pi / 8)
    centre = torch.stack([angle.cos(), angle.sin()], 1)
    return centre + 0.05 * torch.randn(count, 2)


def mlp(inputs, outputs, width):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1280)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(5)
    torch.set_num_threads(1)

    generator, discriminator = mlp(16, 2, args.width), mlp(2, 1, args.width)
    opt_g = torch.optim.RMSprop(generator.parameters(), lr=2e-4)
    opt_d = torch.optim.RMSprop(discriminator.parameters(), lr=2e-4)
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(args.batch, 1), torch.zeros(args.batch, 1)

    for step in range(args.steps):
        real = real_points(args.batch)
        fake = generator(torch.randn(args.batch, 16))

        opt_d.zero_grad()
        loss_d = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
        loss_d.backward()
        opt_d.step()

        opt_g.zero_grad()
        loss_g = bce(discriminator(fake), ones)
        loss_g.backward()
        opt_g.step()

        if step % 20 == 0:
            print(f"{step}: D {loss_d.item():.3f} G {loss_g.item():.3f}")


if __name__ == "__main__":
    main()
