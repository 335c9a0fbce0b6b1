"""Copies to a GPU: those that overlap with computing take no time of a step. CUDA is played, its times are exact."""

from __future__ import annotations

import numpy as np
import pytest
from tests.inprocess.recorder.played_cuda import run_watched

from paceline.explain.diagnose import diagnose
from paceline.record.layout import FLAG_DEVICE_TIMED
from paceline.record.run import Run

# A step computes for 10 ms on the device; where it prefetches, the next copy begins before that.
PROGRAM = """
copy_ms = float(sys.argv[2])
side = Stream()


class Timed(torch.nn.Linear):
    def forward(self, data):
        takes(4.0)
        out = super().forward(data)
        out.register_hook(lambda gradient: takes(5.0))
        return out


model = Timed(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.register_step_post_hook(lambda *of: takes(1.0))
computing = Stream.current


def copied():
    if sys.argv[1] == "dtype":
        return torch.randn(16, 64, dtype=torch.float64).to(torch.float32)
    if sys.argv[1] == "blocking":
        return torch.randn(16, 64).to("cuda")
    with side:
        return torch.randn(16, 64).to("cuda", non_blocking=True)


def batches():
    ahead = copied()
    for step in range(400):
        if sys.argv[1] == "ahead":
            computing.wait_stream(side)
        batch, ahead = ahead, copied()
        yield batch


for batch in batches():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.006)
print("done")
"""


def played(tmp_path, way: str, copy_ms: float) -> Run:
    ended, run = run_watched(tmp_path, PROGRAM, way, str(copy_ms))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    return run


def transfer_share(run: Run) -> float:
    rows = run.ranks[0].steps
    timed = rows[(rows["flags"] & FLAG_DEVICE_TIMED) != 0]
    assert len(timed) >= 4  # of 400: on a busy machine an event costs more, so fewer steps are timed
    return float(np.median(timed["transfer_s"] / timed["wall_s"]))


@pytest.mark.parametrize(("copy_ms", "share"), [(6.0, 0.0), (15.0, 1 / 3)])
def test_of_a_copy_ahead_only_what_is_waited_for_is_transfer(tmp_path, copy_ms, share):
    run = played(tmp_path, "ahead", copy_ms)
    assert transfer_share(run) == pytest.approx(share, abs=1e-3)
    copies = run.ranks[0].summary["device"]["overlapped_copies"]
    assert copies["off"] is None
    assert 300 < copies["count"] <= 401  # the first steps come before the device is known to be in use
    assert copies["timed_s"] / copies["timed"] == pytest.approx(copy_ms / 1e3, rel=1e-6)
    assert ("XFER001" in {finding.code for finding in diagnose(run).findings}) == (share > 0)


def test_a_copy_on_the_stream_that_computes_is_transfer(tmp_path):
    run = played(tmp_path, "blocking", 10.0)
    assert transfer_share(run) == pytest.approx(1 / 2, abs=1e-3)
    assert run.ranks[0].summary["device"]["overlapped_copies"]["count"] == 0


def test_another_number_format_is_no_copy_to_the_device(tmp_path):
    run = played(tmp_path, "dtype", 0.0)
    assert float(run.ranks[0].steps["transfer_s"].max()) == 0.0
