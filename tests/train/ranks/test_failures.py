"""Does a run of several ranks end soon, with one error on one rank, when something is wrong with one of them?"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from tests.train.launching import FORKED, environment

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
if what == "late":
    recipe["process_group"] = {"timeout_s": 10}  # on a busy machine, ranks can start seconds apart
if what == "split":
    recipe["layout"] = "shard=2"
engine = Engine({**recipe, "checks": {"samples": False}})
width = 5 if what == "other shapes" and rank == 1 else 4
model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4))
if what == "unused":
    model[0].spare = nn.Linear(4, 4)
engine.setup(model, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), loss=nn.functional.mse_loss)
for number in range(100):
    engine.train_batch(torch.ones(2, 4), torch.zeros(2, 4))
    engine.step()
    if "killed" in what and number == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "through early" and number == 3 and rank == 1:
        sys.exit(0)
    if what == "split":
        torch.renorm(next(model.parameters()), 2, 0, 1.0)
    if what == "own error" and number == 3 and rank == 1:
        raise ValueError("a sample is broken")
    if what == "own error" and number == 3 or what == "late" and number == 3 and rank == 1:
        time.sleep(60)  # it waits for something that never comes
"""
SAYS = {
    "too few ranks": "takes 4 ranks (dp 4), and there are 2; start it with `torchrun --nproc-per-node 4 SCRIPT`",
    "other shapes": "made another Sequential than rank 0: it has 0.weight (5, 4) torch.float32, rank 0 has 0.weight (4",
    "unused": "0.spare.weight, 0.spare.bias did not contribute to the loss, so gradients were not averaged; set ddp.",
    "killed": "rank 1 ended without an error (killed, out of memory, or exited early); all ranks end",
    "killed, asynchronous": "rank 1 ended without an error (killed, out of memory, or exited early); all ranks end",
    "through early": "ended without an error (killed, out of memory, or exited early); all ranks end",
    "late": "rank 0: waited 10 s for another rank, the limit (process_group.timeout_s, --timeout-s): a rank is slow",
    "split": "torch cannot apply an operator to a tensor that is split over ranks (Operator aten.renorm.default does",
    "own error": "rank 1: failed with the error above; all ranks end",
}
WITHIN_S = 100  # on a slow machine, most of it imports; a rank that hangs would wait for half an hour


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """All at once; each is watched by a launcher that would wait for ranks that hang, one of them torch's own."""
    program = tmp_path_factory.mktemp("program") / "train.py"
    program.write_text(TRAINS)
    others = [what for what in SAYS if what != "killed"]
    line = [word for what in others for word in ("+", "2", str(program), what)][1:]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    options = {"stdout": -1, "stderr": -1, "text": True, "env": environment()}
    running = [
        subprocess.Popen([*launcher, "killed"], **options),
        subprocess.Popen([sys.executable, str(FORKED), *line], env=environment()),
    ]
    began, found = time.monotonic(), {}
    try:
        found["killed"] = (running[0].communicate(timeout=WITHIN_S)[1], running[0].returncode)
        running[1].wait(timeout=max(1, WITHIN_S - (time.monotonic() - began)))
    finally:
        for one in running:
            one.kill()
    for number, what in enumerate(others):
        err, code = (program.with_name(f"train.py.{number}.{kind}") for kind in ("err", "code"))
        found[what] = (err.read_text(), int(code.read_text()))
    return found


@pytest.mark.parametrize("what", SAYS)
def test_one_rank_says_what_is_wrong_and_all_end(endings, what):
    err, code = endings[what]
    ours = [line for line in err.splitlines() if line.startswith("paceline: ")]
    assert code != 0
    assert "ranks did not end" not in err
    if "killed" in what and not ours:  # the launcher may be the first to see it, and stops the other rank
        assert "Signal 9 (SIGKILL)" in err
        return
    assert len(ours) == 1, err[:3000]
    assert SAYS[what] in ours[0]


def test_an_error_of_the_program_is_shown_once(endings):
    err, _ = endings["own error"]
    assert err.count("ValueError: a sample is broken") == 1
