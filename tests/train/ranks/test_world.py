"""Does a rank leave without an abort after its last exchange, and do all its groups have the timeout of the recipe?"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.train.launching import environment, on_ranks

LEAVES = """
import os, sys, threading, time
import torch
from torch.nn.parallel import DistributedDataParallel
from paceline.train.ranks.world import leave

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
model(torch.randn(8, 16)).sum().backward()
names = [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task")]

def computes(until):
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("pt_gloo_runloop")
    while time.monotonic() < until:
        torch.randn(400, 400) @ torch.randn(400, 400)

begun = time.monotonic()
threading.Thread(target=computes, args=(begun + float(sys.argv[2]),), daemon=True).start()
time.sleep(0.1)
leave()
print("pt_gloo_runloop" in names, torch.distributed.is_initialized(), time.monotonic() - begun, flush=True)
os._exit(0)  # what still computes aborts an ordinary end
"""


def left(meeting: os.PathLike[str], computes_s: float) -> tuple[str, str, float]:
    command = [sys.executable, "-c", LEAVES, str(meeting), str(computes_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    named, initialized, took_s = done.stdout.split()
    return named, initialized, float(took_s)


def test_a_rank_leaves_once_the_threads_of_gloo_rest(tmp_path):
    """Their name is torch's, which a new version may change: then nobody would be waited for."""
    named, initialized, took_s = left(tmp_path / "meeting", 0.6)
    assert (named, initialized) == ("True", "False")
    assert took_s >= 0.6


def test_a_rank_does_not_wait_for_ever(tmp_path):
    assert 1.1 <= left(tmp_path / "meeting", 60.0)[2] < 30


TIMEOUTS = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from paceline.train import Engine

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
found = {}
for number, layout in enumerate(sys.argv[2:], 7):
    engine = Engine({"layout": layout, "process_group": {"timeout_s": number}})
    made = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8))
    if "tp" in layout:
        made.tp_plan = {"1": "colwise_gather_output"}
    engine.setup(made, lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=lambda o, t: o.mean())
    batch = torch.zeros(8, 8, dtype=torch.long)
    engine.train_batch(batch, batch)
    engine.loss(), engine.step()
    groups = [*engine.world._groups.values(), *engine.world.mesh.get_all_groups(), torch.distributed.group.WORLD]
    cpu = torch.device("cpu")
    found[layout] = [group._get_backend(cpu).options._timeout.total_seconds() for group in groups]
if torch.distributed.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_all_groups_of_a_layout_have_the_timeout(tmp_path):
    """Also where the process group was there before the engine."""
    program, result = tmp_path / "program.py", tmp_path / "result.json"
    program.write_text(TIMEOUTS)
    layouts = ["dp=2,tp=2", "dp=2,shard=2", "dp=2,pp=2"]
    ran = on_ranks(4, program, result, *layouts, timeout_s=150)
    assert result.exists(), ran.stderr[-4000:]
    found = json.loads(result.read_text())
    assert {layout: set(timeouts) for layout, timeouts in found.items()} == {
        layout: {number} for number, layout in enumerate(layouts, 7)
    }
    assert all(len(timeouts) > 3 for timeouts in found.values())


ENGINES = """
import torch
from paceline.train import Engine

for turn in range(3):
    torch.manual_seed(turn)
    with Engine({"layout": "dp=2"}) as engine:
        net = torch.nn.Linear(3, 1)
        engine.setup(net, lambda model: torch.optim.SGD(model.parameters(), 0.1), loss=torch.nn.functional.mse_loss)
        engine.train_batch(torch.ones(4, 3), torch.ones(4, 1))
        engine.step()
    if engine.is_first:
        print("trained", turn, flush=True)
"""


def test_a_process_may_have_one_engine_after_the_other(tmp_path):
    """The ranks of the second one waited for each other: the store still had the addresses of the first."""
    program = tmp_path / "program.py"
    program.write_text(ENGINES)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=100, env=environment())
    assert done.stdout.splitlines() == [f"trained {turn}" for turn in range(3)], done.stderr
