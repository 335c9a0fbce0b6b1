"""A whole watched program with a simulated torch.cuda: our CUDA code without CUDA.

The stand-in's events pass at once and carry a clock that the program moves on by hand, so that what the device
is said to have taken is known to the microsecond, however busy the machine is.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.inprocess.recorder.played_cuda import run_watched

from paceline.explain.analysis.run_analysis import analyze_run
from paceline.explain.diagnose import diagnose
from paceline.record.layout import FLAG_DEVICE_TIMED, FLAG_LOSS, FLAG_PROFILED

PROGRAM = """
class Timed(torch.nn.Sequential):
    def forward(self, data):
        takes(2.0)
        out = super().forward(data)
        out.register_hook(lambda gradient: takes(4.0))
        return out


model = Timed(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_post_hook(lambda *of: takes(1.0))
data = torch.randn(16, 64)
for step in range(120):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=False):
        loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    takes(3.0)
    time.sleep(0.008)
print("done", len(list(model.parameters())))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played")
    ended, run = run_watched(folder, PROGRAM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done 4\n", "")
    return run


def test_the_device_is_described(run):
    meta = run.ranks[0].meta
    assert (meta["device"], meta["device_name"], meta["capability"]) == ("cuda", "NVIDIA H200", "9.0")
    assert (meta["autocast"], meta["matmul_tf32"], meta["cuda_graphs"]) == (None, False, False)


def test_steps_are_timed_by_the_device(run):
    rows = run.ranks[0].steps
    timed = rows[(rows["flags"] & FLAG_DEVICE_TIMED) != 0]
    assert len(rows) == 120
    assert len(timed) >= 4  # of 120: on a busy machine an event costs more, so fewer steps are timed
    takes = {"forward_s": 0.2, "backward_s": 0.4, "optimizer_s": 0.1, "gap_s": 0.3}
    for name, share in takes.items():
        assert timed[name] / timed["wall_s"] == pytest.approx(np.full(len(timed), share), abs=1e-3)
    assert ((rows["flags"] & (FLAG_LOSS | FLAG_PROFILED)) != 0).all()  # under a profiler no loss is read


def test_the_summary_says_what_it_cost(run):
    told = run.ranks[0].summary["device"]
    assert told["off"] is None
    assert told["events"] > 50
    assert 0 < told["event_cost_s"] < 1e-3
    assert set(told["lag_s"]) >= {"forward", "backward", "optimizer"}
    assert json.dumps(told)


def test_the_operations_of_one_step_are_counted(run):
    window = analyze_run(run).first.window
    products = 2 * 16 * 64 * 64 + 2 * 16 * 64 * 8
    assert window.steps == 1
    assert window.flops_per_step == 2 * products + 2 * 16 * 64 * 8  # the first layer's input needs no gradient


def test_memory_is_the_allocators(run):
    memory = analyze_run(run).first.memory
    assert (memory.peak_allocated, memory.reserved, memory.total) == (6e8, 9e8, 140 << 30)


def test_it_is_explained(run):
    found = diagnose(run)
    assert found.device == "cuda"
    assert "device_times" not in found.unavailable
    assert found.mfu is not None
