"""Commands that a program starts while it trains; each case prints what it saw.

python commands.py NAME ...
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def train(model, data, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in [*DataLoader(data, batch_size=4)][:steps]:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    return f"{sum(weight.sum().item() for weight in model.parameters()):.5f}"


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


@case
def appended_by_a_shell():
    os.system("echo before >> shell.log")
    found = train(net(), torch.ones(16, 4))
    subprocess.run("echo after >> shell.log", shell=True, check=True)
    return found, Path("shell.log").read_text().split()


@case
def checkpoint_copied_by_a_command():
    model = net()
    train(model, torch.ones(16, 4))
    torch.save(model.state_dict(), "last.pt")
    subprocess.check_call(["cp", "last.pt", "best.pt"])
    subprocess.run(["rm", "last.pt"], check=True)
    model.load_state_dict(torch.load("best.pt"))
    return train(model, torch.ones(16, 4)), os.path.exists("best.pt")


@case
def output_and_errors():
    found = subprocess.check_output(["date", "+%N"], text=True)
    said = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    model = net()
    with torch.no_grad():
        model.weight.mul_(int(found) / 1e9 + int(said.stdout) / 1e6)  # every rank must have drawn the same
    try:
        subprocess.run(["false"], check=True)
    except subprocess.CalledProcessError as error:
        code = error.returncode
    try:
        subprocess.run(["paceline-is-no-such-command"])
    except FileNotFoundError as error:
        name = error.filename
    train(model, torch.ones(16, 4))
    return code, name, subprocess.getoutput("echo text")


@case
def command_of_each_rank():
    """The name of the folder is drawn by each process, so that each needs its own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["touch", f"{folder}/made"], check=True)
        names = os.listdir(folder)
    return train(net(), torch.ones(16, 4)), names


class ByCommand(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, place):
        return torch.full((4,), float(subprocess.check_output(["echo", str(place)])))


@case
def samples_by_commands():
    return (train(net(), ByCommand()),)


def main():
    for name in sys.argv[1:] or CASES:
        print(name, *CASES[name](), flush=True)


if __name__ == "__main__":
    main()
