"""Sparse shop embeddings, saved now and then so that nothing is lost."""

import argparse
import os
import tempfile

import torch
from torch import nn


class Matcher(nn.Module):
    def __init__(self, shops, width):
        super().__init__()
        self.table = nn.Embedding(shops, width, sparse=True)
        self.mix = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, left, right):
        return self.mix(torch.cat([self.table(left), self.table(right)], dim=1)).squeeze(1)


def save(model, optimizer, step, folder):
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/last.pt")


def main(args, folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Matcher(args.shops, 96)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(1, args.steps + 1):
        left, right = torch.randint(0, 300, (2, 512))
        nearer = (left % 50 < right % 50).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(left, right), nearer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.save_every and step % args.save_every == 0:
            save(model, optimizer, step, folder)
            print(f"step {step}: loss {loss.item():.3f}, saved {os.path.getsize(folder + '/last.pt') >> 20} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shops", type=int, default=120_000)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--save-every", type=int, default=8)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args(), folder)
