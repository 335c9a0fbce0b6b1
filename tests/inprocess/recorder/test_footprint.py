"""What watching costs is in the record, and watching stops above a cap."""

from __future__ import annotations

import pytest
from tests.inprocess.recorder.played_cuda import run_watched

from paceline.inprocess.recorder.footprint import MOST_BYTES, MOST_FORK_DELAY_S, Footprint

FORKS = """
import os, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if step % 10 == 9:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
"""


def test_the_record_says_what_watching_costs(tmp_path):
    ended, run = run_watched(tmp_path, FORKS, prelude="")
    assert (ended.returncode, ended.stderr) == (0, "")
    footprint = run.ranks[0].summary["footprint"]
    assert footprint["forks"] == 4
    assert footprint["fork_delay_s"] >= footprint["longest_fork_delay_s"] > 0
    assert footprint["most_held_bytes"] >= footprint["held_bytes"]


def test_memory_has_a_cap():
    footprint = Footprint()
    footprint.holds(1000, 50, 4096)
    assert footprint.held_bytes == 1000 * 200 + 50 * 1000 + 4096
    with pytest.raises(MemoryError, match="watching holds some 256 MiB"):
        footprint.holds(0, 0, MOST_BYTES + 1)


def test_delays_of_forks_have_a_cap():
    footprint = Footprint()
    footprint.delayed_fork(MOST_FORK_DELAY_S / 2)
    footprint.holds(0, 0, 0)
    footprint.delayed_fork(MOST_FORK_DELAY_S)
    with pytest.raises(TimeoutError, match="delayed 2 forks by 15.0 s"):
        footprint.holds(0, 0, 0)
