"""Does a run of several ranks end soon, with one error on one rank, when something is wrong with one of them?"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from tests.train.launching import environment

TRAINS = """
import os, signal, sys, time
import torch
from torch import nn
from paceline.train import Engine

what, rank = sys.argv[1], int(os.environ["RANK"])
torch.set_num_threads(1)
recipe = {"layout": "dp=4" if what == "too few ranks" else "dp=2"}
if what == "killed, asynchronous":
    recipe["asynchronous"] = {"max_staleness": 2}
engine = Engine(recipe)
width = 5 if what == "other shapes" and rank == 1 else 4
model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4))
engine.setup(model, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), loss=nn.functional.mse_loss)
for number in range(100):
    engine.train_batch(torch.ones(2, 4), torch.zeros(2, 4))
    engine.step()
    if "killed" in what and number == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "own error" and number == 3 and rank == 1:
        raise ValueError("a sample is broken")
    if what == "own error" and number == 3:
        time.sleep(60)  # it waits for something that never comes
"""
SAYS = {
    "too few ranks": "takes 4 ranks (dp 4), and there are 2; start it by `torchrun --nproc-per-node 4 SCRIPT`",
    "other shapes": "made another Sequential than rank 0: it has 0.weight (5, 4) torch.float32, rank 0 has 0.weight (4",
    "killed": "rank 1 ended without an error (killed, or out of memory?); all ranks end",
    "killed, asynchronous": "rank 1 ended without an error (killed, or out of memory?); all ranks end",
    "own error": "rank 1: failed with the error above; all ranks end",
}
WITHIN_S = 100  # on a slow machine, most of it imports; a rank that hangs would wait for half an hour


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """All at once; each is watched by a launcher that would wait for ranks that hang."""
    program = tmp_path_factory.mktemp("program") / "train.py"
    program.write_text(TRAINS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    began = time.monotonic()
    running = {
        what: subprocess.Popen([*launcher, what], stdout=-1, stderr=-1, text=True, env=environment()) for what in SAYS
    }
    found = {}
    for what, one in running.items():
        try:
            found[what] = (one.communicate(timeout=max(1, WITHIN_S - (time.monotonic() - began)))[1], one.returncode)
        finally:
            one.kill()
    return found


@pytest.mark.parametrize("what", SAYS)
def test_one_rank_says_what_is_wrong_and_all_end(endings, what):
    err, code = endings[what]
    ours = [line for line in err.splitlines() if line.startswith("paceline: ")]
    assert code != 0
    if "killed" in what and not ours:  # the launcher may be the first to see it, and stops the other rank
        assert "Signal 9 (SIGKILL)" in err
        return
    assert len(ours) == 1, err[:3000]
    assert SAYS[what] in ours[0]


def test_an_error_of_the_program_is_shown_once(endings):
    err, _ = endings["own error"]
    assert err.count("ValueError: a sample is broken") == 1
