"""Programs that name the port at which their ranks meet: two of them run side by side, as trials do."""

from __future__ import annotations

import sys
import textwrap

import pytest

from paceline.inprocess.sandbox.ports import free_port, is_here, own_port, stands_for
from paceline.tune.trials.process import TrialProcess

TRAINS = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp

def trains(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2000):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        trains(int(os.environ["RANK"]), 2)
    else:
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": sys.argv[1]}
        mp.spawn(trains, args=(2,), nprocs=2)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param((*TORCHRUN, "--master-addr", "localhost", "--master-port", "PORT"), id="torchrun's port"),
        pytest.param((*TORCHRUN, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:PORT"), id="an endpoint"),
        pytest.param((), id="a port in the program"),
    ],
)
def test_two_trials_of_a_program_that_names_its_port(launcher, tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINS))
    port = str(free_port())
    command = [sys.executable, *(word.replace("PORT", port) for word in launcher), "train.py", port]
    one, other = (TrialProcess(command, {}, tmp_path / name, {}, tmp_path) for name in ("one", "other"))
    with one, other:
        one.begin()
        other.begin()
        assert one.run_steps(3, 60.0).steps == other.run_steps(3, 60.0).steps == 3


def test_all_processes_of_a_trial_are_told_the_same_port(tmp_path):
    own = own_port(tmp_path / "ports", 12355)
    assert own != 12355
    assert own_port(tmp_path / "ports", 12355) == own
    assert own_port(tmp_path / "others", 12355) != own
    assert stands_for(tmp_path / "ports", own, own) == own  # who is told the port that it has asks again


def test_a_meeting_place_elsewhere_is_left_alone():
    assert is_here("localhost")
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1")  # of documentation
    assert not is_here("no-such-host.invalid")
