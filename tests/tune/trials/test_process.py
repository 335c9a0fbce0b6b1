"""A block takes as long as the device works, also where the program only queues the work."""

from __future__ import annotations

import os
import sys
import textwrap
from types import SimpleNamespace

import pytest

from paceline.core.recipe import BASELINE
from paceline.inprocess.settings.trial import step_control
from paceline.tune.trials.blocks import TrialFailed
from paceline.tune.trials.process import TrialProcess

LAGS = """
import time, torch

left = 0  # seconds of work that the device has in its queue

def synchronize(device=None):
    global left
    time.sleep(left)
    left = 0

torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.device_count = lambda: 1
torch.cuda.synchronize = synchronize
torch.cuda.max_memory_allocated = torch.cuda.memory_allocated = lambda *_: 0
torch.cuda.reset_peak_memory_stats = lambda *_: None
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
while True:
    parameter.sum().backward()
    optimizer.step()
    left += 0.05
"""


def test_the_seconds_of_a_block_are_those_of_the_device(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(LAGS))
    with TrialProcess([sys.executable, "train.py"], BASELINE, tmp_path / "trial", dict(os.environ), tmp_path) as player:
        player.begin()
        player.run_steps(1, 60.0)
        blocks = [player.run_steps(10, 60.0) for _ in range(2)]
    assert all(block.seconds >= 9 * 0.05 for block in blocks)


def cuda(**also):
    waited = []
    found = SimpleNamespace(
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
        device_count=lambda: 3,
        synchronize=waited.append,
    )
    return SimpleNamespace(cuda=SimpleNamespace(**{**vars(found), **also}), _C=SimpleNamespace()), waited


def test_a_device_that_the_process_does_not_use_is_left_alone():
    torch, waited = cuda()
    torch._C._cuda_hasPrimaryContext = lambda index: index == 1
    step_control.drain(torch)
    assert waited == [1]


def test_nothing_is_waited_for_before_cuda_is_used_or_while_a_graph_is_captured():
    for also in ({"is_initialized": lambda: False}, {"is_current_stream_capturing": lambda: True}):
        torch, waited = cuda(**also)
        step_control.drain(torch)
        assert waited == []


CAPTURES = """
import torch

capturing = False
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: capturing
torch.cuda.device_count = lambda: 0
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(4):
    capturing = step == 3
    parameter.sum().backward()
    optimizer.step()
while True:
    pass  # replays
"""


def test_steps_that_are_captured_as_a_graph_cannot_be_tried(tmp_path):
    """The replays would be waited for in vain."""
    (tmp_path / "train.py").write_text(textwrap.dedent(CAPTURES))
    with TrialProcess([sys.executable, "train.py"], BASELINE, tmp_path / "trial", dict(os.environ), tmp_path) as player:
        player.begin()
        with pytest.raises(TrialFailed, match="it replays whole steps as a CUDA graph"):
            player.run_steps(10, 60.0)
