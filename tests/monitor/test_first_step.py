"""Programs are caught at their first step as they are: formats, parts of a batch, devices that they compare."""

from __future__ import annotations

import os
import sys

import pytest

from paceline.monitor.first_step import catch

pytest.importorskip("torch")

LOOP = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.inner, self.out = nn.Embedding(100, 16), nn.Linear(16, 16), nn.Linear(16, 100)

    def forward(self, ids):
        return self.out(self.inner(self.embedding(ids)))

net = Net()
{before}
optimizer = torch.optim.AdamW(net.parameters())
total = torch.tensor(0.0)
for _ in range(3):
    for _ in range(2):
        loss = net(torch.randint(0, 100, (4, 8))).float().mean()
        assert loss.device == total.device
        loss.backward()
    optimizer.step({closure})
"""
INSIDE = """
forward = net.forward
net.forward = lambda ids: torch.autocast("cuda", dtype=torch.bfloat16)(forward)(ids)
"""
VALUES = "assert abs(net.inner.weight.detach().numpy().sum()) > 0\n"
ACCELERATE = """
class AcceleratorState:
    _shared_state = {"_mixed_precision": "fp16"}
"""
TRAINER = """
def is_torch_bf16_gpu_available():
    return False
"""
ASKS_FOR_BF16 = """
from transformers import training_args
assert training_args.is_torch_bf16_gpu_available()
"""


def caught(folder, before="", closure="None"):
    program = folder / "train.py"
    program.write_text(LOOP.format(before=before, closure=closure), encoding="utf-8")
    return catch([sys.executable, str(program)], os.environ)


def test_a_closure_that_is_none_is_none_and_parts_of_a_batch_are_counted(tmp_path):
    found = caught(tmp_path)
    assert not found.real
    assert (found.note["micro_steps"], found.note["autocast"]) == (2, None)


@pytest.mark.parametrize("values", [False, True])
def test_autocast_within_the_forward_pass_is_seen(tmp_path, values):
    found = caught(tmp_path, INSIDE + (VALUES if values else ""))
    assert found.real is values
    assert found.note["autocast"] == "bfloat16"


def test_the_format_is_that_of_most_weights(tmp_path):
    model = caught(tmp_path, "net.to(torch.bfloat16).inner.float()\n").note["model"]
    assert model["dtype"] == "bfloat16"
    assert 2 < model["weight_bytes"] < 3


def test_what_accelerate_was_asked_for_counts_where_it_leaves_it_out_without_a_gpu(tmp_path):
    package(tmp_path / "accelerate", "state", ACCELERATE)
    assert caught(tmp_path, "import accelerate.state\n").note["autocast"] == "float16"


def test_a_trainer_may_ask_for_bf16_without_a_gpu(tmp_path):
    package(tmp_path / "transformers", "training_args", TRAINER)
    assert not caught(tmp_path, ASKS_FOR_BF16).real


def package(folder, module, text):
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
