"""Runs made once by the real command line, and a way to call it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Paceline = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """\
import sys, time
import torch
from torch import nn

pause_s, steps = float(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return len(data)

    def __getitem__(self, index):
        time.sleep(pause_s)
        return data[index]


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x, y) in enumerate(torch.utils.data.DataLoader(Slow(), batch_size=8)):
    if number == steps:
        break
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if len(sys.argv) > 3 and number == 20:
        raise ValueError(sys.argv[3])
print("trained")
"""


def call(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, without what the tests' own environment sets."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PACELINE_", "FORCE_COLOR", "COLUMNS"))}
    return subprocess.run(
        [sys.executable, "-m", "paceline", *arguments],
        cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three real runs: `fast`, `slow` (its loader sleeps longer) and `crashed`."""
    place = tmp_path_factory.mktemp("recorded")
    (place / "train.py").write_text(PROGRAM)
    for run_id, *program in (
        ("fast", "0.0005", "150"),
        ("slow", "0.0025", "150"),
        ("crashed", "0.0005", "150", "out of luck"),
    ):
        done = call("run", "--run-id", run_id, "train.py", *program, cwd=place)
        assert done.returncode == (run_id == "crashed"), done.stderr
    return place


@pytest.fixture
def place(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the recorded runs, to be changed at will."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def paceline(place: Path) -> Paceline:
    """Call the command line where the runs are."""

    def inner(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return call(*arguments, cwd=place, **environment)

    return inner
