"""A watched program on a GPU that forks: nothing of CUDA that we hold is used or freed in the child. CUDA is played."""

from __future__ import annotations

import pytest
from tests.inprocess.recorder.played_cuda import run_watched

PROGRAM = """
import multiprocessing

losses_on_device()
way = sys.argv[1]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps):
    for _ in range(steps):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def child():
    if way == "trains":
        train(200)
    if way == "nested":
        fork_and_exit()
    gc.collect()


def fork_and_exit():
    pid = os.fork()
    if pid == 0:
        gc.collect()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0


until = time.monotonic() + 60
from paceline.inprocess.recorder.probe_state import gate
while gate.take_loss is None:  # once the recorder has seen that the device is in use
    assert time.monotonic() < until
    train(1)
train(200)
if way == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
else:
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)  # as a program ends: modules and what they hold are taken apart
    assert os.waitpid(pid, 0)[1] == 0
train(20)
print("done")
"""


@pytest.mark.parametrize("way", ["multiprocessing", "os.fork", "nested", "trains"])
def test_nothing_of_cuda_is_used_or_freed_in_a_forked_child(tmp_path, way):
    ended, run = run_watched(tmp_path, PROGRAM, way)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert run.ranks[0].summary["device"]["events"] > 0
