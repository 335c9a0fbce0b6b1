"""A trainer that writes its state carefully: to a side file, flushed, then moved into place."""

import argparse
import os
import shutil
import tempfile

import torch
from torch import nn


class SafeTrainer:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.model = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(),
                                   nn.Linear(args.width, 8))  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.rule = torch.randn(64, 8)
        self.step = 0

    def train_one(self):
        x = torch.randn(8, 64)
        loss = nn.functional.cross_entropy(self.model(x), (x @ self.rule).argmax(1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def checkpoint(self):
        final = os.path.join(self.folder, f"step{self.step:05d}.pt")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        with open(final + ".part", "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(final + ".part", final)
        for old in sorted(os.listdir(self.folder))[:-2]:
            os.remove(os.path.join(self.folder, old))

    def fit(self):
        for _ in range(self.args.steps):
            loss = self.train_one()
            if self.args.every and self.step % self.args.every == 0:
                self.checkpoint()
                print(self.step, f"{loss:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=2400)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--every", type=int, default=4)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    scratch = tempfile.mkdtemp()
    try:
        SafeTrainer(arguments, scratch).fit()
    finally:
        shutil.rmtree(scratch)
