"""Loops that combine the samples of a batch are reported with their line; ordinary loops are not."""

from __future__ import annotations

import json

import pytest
from tests.train.launching import on_ranks

PROGRAM = """
import sys
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset
from tests.train.small_model import begin, finish
from paceline.train import Engine

DRAWN = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 6, generator=DRAWN), torch.randint(0, 4, (32,), generator=DRAWN)
LENGTHS, WEIGHTS = torch.randint(1, 6, (32,), generator=DRAWN), torch.rand(32, generator=DRAWN)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.first(x).relu())


def flipped(x, y, weights):
    return 0.7 * x + 0.3 * x.flip(0), y  # flip


def permuted(x, y, weights):
    order = torch.randperm(len(x), generator=DRAWN)
    return x[order], y[order]


def rolled(x, y, weights):
    return torch.roll((x * 0.5), 1, 0), y


def normalized(x, y, weights):
    return (x - x.mean(0)) / x.std(0), y


def weighed(x, y, weights):
    return x, y * int((weights / weights.max()).numel() > 0)


def ordinary(x, y, weights):
    row_means = x.mean(1, keepdim=True)
    shown, first = x[:2], x[0]
    masked = x[y > 1]
    mirrored = x.flip(1).roll(1, 1).softmax(-1)
    assert len(masked) + len(mirrored) + len(shown) + len(first) > 0
    return x - row_means, y


def train(change):
    torch.manual_seed(0)
    engine = Engine({"layout": "dp=2"})
    model, _ = engine.setup(Net(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1), loss=cross_entropy)
    originals = torch.Tensor.flip, torch.roll, torch.Tensor.__getitem__
    for x, y, lengths, weights in engine.loader(DataLoader(TensorDataset(X, Y, LENGTHS, WEIGHTS), 4)):
        most, valid = lengths.max(), (lengths > 2).sum()
        with engine.micro_step():
            changed, target = change(x, y, weights)
            output = model(changed)
            accuracy = (output.argmax(1) == target).float().mean()
            engine.backward((cross_entropy(output, target, reduction="none")).mean())
        engine.step()
    return originals == (torch.Tensor.flip, torch.roll, torch.Tensor.__getitem__)


begin()
finish(train(globals()[sys.argv[2]]))
"""


def told_by(kind, folder):
    (folder / "program.py").write_text(PROGRAM)
    done = on_ranks(2, folder / "program.py", folder / "result.json", kind, timeout_s=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((folder / "result.json").read_text()), "the methods of torch are not those of before"
    return [line for line in done.stderr.splitlines() if "the training loop uses" in line]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("flipped", "flip()"),
        ("permuted", "an index"),
        ("rolled", "roll()"),
        ("normalized", "mean()"),
        ("weighed", "max()"),
    ],
)
def test_the_line_that_combines_samples_is_named_once(tmp_path, kind, what):
    (line,) = told_by(kind, tmp_path)
    place = PROGRAM.splitlines().index(f"def {kind}(x, y, weights):") + 2
    assert f"the training loop uses {what} over the samples of a batch (program.py:" in line
    assert f"program.py:{place}" in line or f"program.py:{place + 1}" in line


def test_an_ordinary_loop_is_not_reported(tmp_path):
    assert told_by("ordinary", tmp_path) == []
