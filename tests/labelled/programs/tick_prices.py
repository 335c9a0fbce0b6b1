# next-move prediction from a text file of ticks
import argparse
import datetime
import os
import random
import tempfile

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lines", type=int, default=160_000)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--window", type=int, default=16)
parser.add_argument("--cached", action="store_true", help="keep the parsed file as one tensor")
opts = parser.parse_args()


def write_ticks(path):
    rng, price, trend = random.Random(0), 100.0, 0.0
    with open(path, "w") as f:
        for n in range(opts.lines):
            trend = 0.9 * trend + rng.gauss(0, 0.05)
            price += trend
            f.write(
                f"2024-03-{1 + n % 28:02d} {n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d};{price:.4f};{rng.random():.3f}\n"
            )


def parse(line):
    stamp, price, volume = line.rstrip("\n").split(";")
    when = datetime.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S")
    return when.hour / 24, float(price), float(volume)


def read_batches(path):
    """Yield (batch, window) of price changes and the change that follows."""
    changes, before = [], None
    with open(path) as f:
        for line in f:
            hour, price, volume = parse(line)
            if before is not None:
                changes.append(price - before)
            before = price
            if len(changes) == opts.batch * 8 + opts.window:
                rows = [changes[i : i + opts.window + 1] for i in range(0, opts.batch * 8, 8)]
                table = torch.tensor(rows)
                yield table[:, :-1], table[:, -1:]
                changes = []


torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(opts.window, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
adam = torch.optim.Adam(net.parameters(), lr=2e-4)
handle, ticks = tempfile.mkstemp(suffix=".csv")
os.close(handle)
write_ticks(ticks)
batches = list(read_batches(ticks)) if opts.cached else read_batches(ticks)
for step, (window, following) in enumerate(batches):
    loss = torch.nn.functional.mse_loss(net(window), following)
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 25 == 0:
        print(step, loss.item())
os.remove(ticks)
