"""A program whose CUDA allocator keeps no statistics loses the readings of device memory and nothing else."""

from __future__ import annotations

import numpy as np
from tests.inprocess.recorder.played_cuda import run_watched

from paceline.explain.diagnose import diagnose

PROGRAM = """
def refuse(device=None):
    raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")


cuda.memory_reserved = cuda.memory_allocated = cuda.memory_stats = refuse
losses_on_device()
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.006)
print("done")
"""


def test_only_the_readings_of_memory_are_missing(tmp_path):
    ended, run = run_watched(tmp_path, PROGRAM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    rank = run.ranks[0]
    assert rank.noted("fault") == []
    assert (len(rank.steps), rank.device) == (120, "cuda")
    assert np.isnan(rank.ticks["device_peak_bytes"]).all() and np.isnan(rank.steps["device_bytes"]).all()
    assert "keeps no statistics (RuntimeError: CUDAPluggableAllocator" in diagnose(run).unavailable["device_memory"]
