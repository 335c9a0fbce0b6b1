"""Data sets whose files are listed in no particular order; each case prints the numbers of the samples that were read.

python listed.py NAME ...
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK = json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"]


class Files(Dataset):
    def __init__(self, files):
        self.files = list(files)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, place):
        text = Path(self.files[place]).read_text()
        return torch.full((4,), float(text)), int(text) % 2


def write(folder, numbers):
    for number in numbers:
        Path(folder, f"sample-{number * 7919 % 1000:03}.txt").write_text(str(number))


def read(files):
    """Train on samples; return their numbers in the order in which they were read, and that of the files."""
    data = Files(files)
    expected = [int(Path(file).read_text()) for file in data.files]
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen = []
    for rows, target in DataLoader(data, batch_size=8):
        loss = nn.functional.cross_entropy(model(rows / 64), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += [int(number) for number in rows[:, 0]]
    return [len(set(seen)), seen == expected]


def added_to():
    """The test has written half of the files; the program writes the others."""
    write("data", range(32, 64))
    return read(os.path.join("data", name) for name in os.listdir("data"))


def by_scandir():
    write("data", range(32, 64))
    return read(entry.path for entry in os.scandir("data") if entry.name.endswith(".txt"))


def by_glob():
    write("data", range(32, 64))
    return [*read(Path("data").glob("*.txt")), *read(Path("data").iterdir())]


def in_a_temporary_folder():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, range(64))
        return read(Path(folder).rglob("*.txt"))


def classes_of_folders():
    for name in ("cat", "dog", "bird", "horse", "ship"):
        os.makedirs(f"classes/{name}", exist_ok=True)
        write(f"classes/{name}", range(8))
    return read(os.path.join(folder, name) for folder, _, names in os.walk("classes") for name in names)


def other_order_on_another_rank():
    write("data", range(32, 64))
    return read(sorted(Path("data").iterdir(), reverse=RANK == 1))


def others_on_another_rank():
    write("data", range(32, 64))
    Path("data", f"sample-{os.getpid()}.txt").write_text(str(64 + RANK))
    return read(sorted(Path("data").iterdir()))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            print(name, *globals()[name](), flush=True)
        except SystemExit as ending:
            print(name, "refused", ending.code, flush=True)
