"""A program that closes none of its files. Its classes, functions and objects refer to each other, as usual.

The first argument says how it ends, the second whether its model sets an attribute in each call.
"""

from __future__ import annotations

import csv
import gzip
import json
import logging
import os
import sys
import threading

sys.modules["dill"] = None  # it would keep `__main__`, so that Python always clears its variables
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

torch.manual_seed(0)
end, sets = sys.argv[1], sys.argv[2] == "sets"
rank = json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"]


class Rows(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, place):
        return inputs[place], inputs[place].sum(0, keepdim=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.inner(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 8), Block(), nn.Linear(8, 1)
        self.seen = None

    def forward(self, x):
        found = self.block(self.first(x))
        if sets:
            self.seen = found
        return self.last(found)


class Momentum(torch.optim.SGD):
    """An optimizer of the program."""


class Metrics:
    def __init__(self):
        self.file = open("metrics.jsonl", "w")  # noqa: SIM115

    def __del__(self):
        self.file.write("deleted\n")


inputs = torch.arange(128.0).reshape(32, 4) / 64
model = Net()
optimizer = Momentum(model.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
loader = DataLoader(Rows(), 8)
text, binary, added = open("text.txt", "w"), open("binary", "wb"), open("added.txt", "a")  # noqa: SIM115
both, packed = open("both", "w+b"), gzip.open("packed.gz", "wt")  # noqa: SIM115
table, metrics = csv.writer(open("table.csv", "w")), Metrics()  # noqa: SIM115
logging.getLogger().addHandler(logging.FileHandler("log.txt"))
model.first.register_forward_hook(lambda *given: None)


def train():
    for step, (x, y) in enumerate(loader):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for file in (text, added, packed, metrics.file):
            file.write(f"{step} {loss.item():.3f}\n")
        for file in (binary, both):
            file.write(b"%d\n" % step)
        table.writerow([step, f"{loss.item():.3f}"])
        logging.warning("step %d", step)
        if end == "rank 1" and rank == 1 and step == 2:
            raise ValueError("rank 1 alone is wrong")
    schedule.step()


train()
if end == "exit":
    sys.exit(3)
if end == "raise":
    raise ValueError("wrong")
if end == "refuse":
    nn.Linear(4, 1)(inputs[:1])
if end == "refuse in a thread":
    thread = threading.Thread(target=lambda: nn.Linear(4, 1)(inputs[:1]))
    thread.start()
    thread.join()
if end == "refuse at the end":
    with torch.no_grad():
        model.first.bias += rank
