"""Does a rank leave without an abort, once what it exchanged last is let go of?"""

from __future__ import annotations

import os
import subprocess
import sys

LEAVES = """
import os, sys, threading, time
import torch
from torch.nn.parallel import DistributedDataParallel
from paceline.train.world import leave

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
