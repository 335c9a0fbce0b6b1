"""fp16 with a scaled loss in programs that nobody edited: what of the scale do they see, and what does it cost?"""

from __future__ import annotations

import pytest

# Gradients added up over micro-steps, clipped and printed; a reentrant checkpoint, which runs a backward of its own
# inside of the first one; and gradients of about 1e-9, which are nothing in fp16 unless they are scaled.
TRAINS = """
import torch
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(forward, factor=1.0):
    optimizer.zero_grad()
    for micro in range(2):
        loss = factor * forward(torch.randn(8, 16).requires_grad_()).square().mean()
        (loss / 2).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    print(loss.item(), norm.item(), model[0].weight.grad.abs().mean().item())
for step in range(4):
    train(model)
for step in range(2):
    train(lambda x: checkpoint(model, x, use_reentrant=True))
train(model, 1e-7)
"""
HALF = {"precision": {"autocast": "fp16"}}


def numbers(out: str) -> list[float]:
    return [float(word) for line in out.splitlines() for word in line.split()]


def test_losses_and_gradients_are_those_of_the_program(ran):
    bare, changed = ran(TRAINS), ran(TRAINS, HALF)
    assert changed.code == 0, changed.err
    assert numbers(bare.out)[-1] < 6e-8  # below what fp16 has
    assert changed.out != bare.out
    assert numbers(changed.out) == pytest.approx(numbers(bare.out), rel=0.02)
    assert changed.held["precision.autocast"] == "Sequential computes in fp16 on cpu"


# 100 times 65,536 is more than fp16 has, 100 times 512 is not; 12,800 times 512 is more again, and times 4 is not.
LARGE = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.ones(1, 8)
def train(factor, step):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    def closure():
        optimizer.zero_grad()
        loss = factor * model(x).sum()
        loss.backward()
        return loss
    for _ in range(9):
        before = model.weight.detach().clone()
        step(optimizer, closure)
        print(bool((model.weight == before).all()), model.weight.grad is not None)
train(100, lambda optimizer, closure: (closure(), optimizer.step()))
train(12800, lambda optimizer, closure: optimizer.step(closure))
"""


def test_a_step_whose_gradients_overflow_is_skipped_and_counted(ran):
    changed = ran(LARGE, HALF)
    assert changed.code == 0, changed.err
    assert changed.out.splitlines() == 2 * (7 * ["True True"] + 2 * ["False True"])
    assert changed.held["precision.autocast"] == (
        "14 of 16 optimizer steps were skipped, because gradients were NaN or infinite in fp16"
    )


OWN = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.autocast("cpu", dtype=torch.bfloat16):
    print(model(torch.ones(4, 8)).dtype)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
scaler.scale(model(torch.ones(4, 8)).sum()).backward()
print(model.weight.grad[0, 0].item())
scaler.step(optimizer)
scaler.update()
"""


def test_a_program_that_does_it_itself_is_left_alone(ran):
    changed = ran(OWN, HALF)
    assert (changed.code, changed.out.split()) == (0, ["torch.bfloat16", "16.0"]), changed.err
    assert "scales its loss itself" in changed.refused["precision.autocast"]
