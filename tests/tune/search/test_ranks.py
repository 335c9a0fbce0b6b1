"""A program of two ranks that a launcher starts: raced and proven rank by rank, the launcher itself is none."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from paceline.core.recipe import BASELINE
from paceline.tune.comparison.model import GOALS, ComparisonSpec, Deadline
from paceline.tune.search.batch_size import gradient_windows
from paceline.tune.search.budget import Budget
from paceline.tune.search.runner import TrialRunner

TRAINS = """
import time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Far(Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index % 7)), index % 3

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = torch.utils.data.distributed.DistributedSampler(Far())
    for x, y in DataLoader(Far(), 8, sampler=sampler):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
THREADS = {"loader": {"num_workers": 0, "threads": 4}}


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(textwrap.dedent(TRAINS))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    made = TrialRunner(command, folder / "trials", folder, GOALS["time"], Budget(total_s=60.0))
    made.measure_variation(0.02, None, waits=True)
    return made


def test_what_ranks_compute_is_compared_and_their_launcher_computes_nothing(runner):
    found = runner.check_equivalence(THREADS, ["exact"], BASELINE)
    assert {check.name for check in found} >= {"samples", "losses", "gradients", "parameters", "steps"}
    assert [check.text for check in found if not check.passed] == []


def test_ranks_are_raced_together(runner):
    race = runner.compare(ComparisonSpec(before=BASELINE, after=THREADS), Deadline(usual=0.0, promising=0.0, large=0.0))
    assert race.speedup.value > 1.3  # samples wait 2 ms each, 16 ms a batch; four threads wait side by side


def test_gradients_are_measured_on_a_rank(runner):
    windows, optimizers = gradient_windows(runner, BASELINE, 1.0)
    assert optimizers == 1
    assert windows
