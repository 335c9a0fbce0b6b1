"""Keeping less for backward: is the training the same to the bit, and is less memory taken?"""

from __future__ import annotations

import re

import pytest

BLOCKS = """
import re, sys
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.wide = nn.BatchNorm1d(width), nn.Linear(width, 2 * width)
        self.back = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.2)
    def forward(self, x):
        return x + self.drop(self.back(torch.relu(self.wide(self.norm(x)))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block({width}) for _ in range(6))
        self.head = nn.Linear({width}, 3)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    x = torch.randn({batch}, {width})
    loss = nn.functional.cross_entropy(model(x), torch.arange({batch}) % 3)
    optimizer.zero_grad()
    loss.backward()
    print(loss.item().hex(), [p.grad.double().sum().item().hex() for p in model.parameters()][:4])
    optimizer.step()
model.eval()
with torch.no_grad():
    print(model(x).double().sum().item().hex())
for name, value in model.named_buffers():
    print(name, value.double().sum().item().hex())
print("peak", re.search("VmHWM:[^0-9]+([0-9]+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
SMALL = BLOCKS.format(width=8, batch=12, steps=4)
BARE: list[str] = []


@pytest.mark.parametrize(
    "settings, computed_again",
    [
        ({"checkpoint_every": 1}, "6 of 6 blocks (Block)"),
        ({"checkpoint_every": 2}, "3 of 6 blocks (Block)"),
        ({"activation_budget": 0.5}, "3 of 6 blocks (Block)"),
    ],
)
def test_checkpointed_blocks_compute_the_same_to_the_bit(ran, settings, computed_again):
    """Losses, gradients, what dropout draws, and the statistics of BatchNorm, which a second forward would shift."""
    changed = ran(SMALL, {"memory": settings})
    if not BARE:
        BARE.append(ran(SMALL).out)
    assert [changed.out] == BARE, changed.err
    (what,) = changed.held.values()
    assert what.startswith(computed_again)


def test_checkpointed_blocks_take_less_memory(ran):
    """Six blocks keep 200 MB and more; computed again, one at a time does. What is freed and kept by malloc varies."""
    large = BLOCKS.format(width=256, batch=16384, steps=1)
    peaks = [int(re.search(r"peak (\d+)", ran(large, r).err)[1]) for r in ({}, {"memory": {"checkpoint_every": 1}})]
    assert peaks[0] - peaks[1] > 100_000  # KiB


def test_autocast_and_checkpoints_together(ran):
    recipe = {"memory": {"checkpoint_every": 1}, "precision": {"autocast": "bf16"}}
    changed = ran(SMALL, recipe)
    assert changed.code == 0, changed.err
    assert set(changed.held) == {"memory.checkpoint_every", "precision.autocast"}
    assert changed.out == ran(SMALL, {"precision": {"autocast": "bf16"}}).out


def test_a_model_without_blocks_says_so(ran):
    source = SMALL.replace("model = Net()", "model = nn.Linear(8, 3)")
    assert ran(source, {"memory": {"checkpoint_every": 1}}).refused == {
        "memory.checkpoint_every": "Linear has no repeated blocks (at least two blocks of the same class)"
    }


@pytest.mark.parametrize(
    "model, computed_again",
    [
        ("nn.Linear(8, 8), {blocks}, nn.Sequential(nn.ReLU(), nn.Linear(8, 3))", "6 of 6 blocks (Block)"),
        ("{blocks}, {blocks}, nn.Linear(8, 3)", "12 of 12 blocks (Block)"),
        ("{layer}, {layer}, nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))", "2 of 2 blocks (Sequential)"),
    ],
)
def test_blocks_lie_in_rows_beside_other_rows(ran, model, computed_again):
    """A stem, a body and a head are three nn.Sequential that have nothing in common."""
    parts = {
        "blocks": "nn.Sequential(*(Block(8) for _ in range(6)))",
        "layer": "nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())",
    }
    source = SMALL.replace("model = Net()", f"model = nn.Sequential({model.format(**parts)})")
    changed = ran(source, {"memory": {"checkpoint_every": 1}})
    assert changed.held["memory.checkpoint_every"].startswith(computed_again), changed.refused


TOKENS = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 5)
    def forward(self, tokens, *, scale):
        return {{"scores": self.out(torch.tanh(self.mix(self.embed(tokens)))) * scale, "tokens": tokens}}

model = Tagger()
{after}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step, size in enumerate([8, 8, 7, 8, 3, 1]):
    tokens = torch.randint(0, 50, (size, 11))
    wanted = torch.randint(0, 5, (size, 11))
    wanted[:, size:] = -100  # padding: other samples have more of it
    wanted[0, 2:] = -100
    scores = model(tokens, scale=0.5)["scores"]
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(len(scores), loss.item(), *(p.grad.norm().item() for p in model.parameters()))
"""


def numbers(text: str) -> list[float]:
    return [float(x) for x in text.split()]


@pytest.mark.parametrize("parts", [3, 8])
def test_a_batch_in_parts_has_the_gradient_of_the_whole_batch(ran, parts):
    """The loss is a mean over tokens that are not padding, and the last batches are ragged."""
    source = TOKENS.format(after="")
    changed = ran(source, {"memory": {"micro_batches": parts}})
    assert changed.held == {"memory.micro_batches": f"batches of 8 samples go through Tagger in {parts} parts"}, (
        changed.err
    )
    assert numbers(changed.out) == pytest.approx(numbers(ran(source).out), rel=2e-5, abs=1e-6)


@pytest.mark.parametrize(
    "after, why",
    [
        ("model.norm = nn.BatchNorm1d(4)", "BatchNorm needs statistics of the whole batch"),
        ("model.out.register_forward_hook(lambda m, i, o: o.mean())", "the model probably computes the loss itself"),
    ],
)
def test_a_model_that_cannot_run_in_parts_says_why(ran, after, why):
    changed = ran(TOKENS.format(after=after), {"memory": {"micro_batches": 2}})
    assert why in changed.refused["memory.micro_batches"]
