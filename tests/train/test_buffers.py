"""Buffers of integers and booleans are compared exactly with those of one process."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.train.small_model import BATCHES, begin, finish, sgd
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = begin()
FIRST = float(BATCHES[0][0][0, 0])
CASES = {
    "samples": (0, lambda buffer, x: buffer.add_(len(x))), "large": (2**40, lambda buffer, x: buffer.add_(len(x))),
    "seen": (False, lambda buffer, x: buffer.logical_or_((x[:, 0] == FIRST).any())),
    "calls": (0, lambda buffer, x: buffer.add_(1)), "is begun": (False, lambda buffer, x: buffer.fill_(True)),
}


class Counted(nn.Module):
    def __init__(self, kind):
        super().__init__()
        first, self.count = CASES[kind]
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("kept", torch.tensor(first))

    def forward(self, x):
        if self.training:
            self.count(self.kept, x)
        return self.last(self.norm(x))


def run(layout, kind):
    torch.manual_seed(0)
    net = Counted(kind)
    try:
        engine = Engine({"layout": layout, "memory": {"micro_batches": 2}})
        engine.setup(net, sgd, loss=mse_loss)
        for inputs, target in BATCHES:
            engine.train_batch(*(each.chunk(2)[engine.world.sample_part] for each in (inputs, target)))
            engine.step()
        return [int(net.kept), int(net.norm.num_batches_tracked)]
    except UsageError as error:
        return str(error)


def recalibrated(layout):
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    alone = nn.BatchNorm1d(4)
    model, _ = Engine({"layout": layout}).setup(net, sgd, loss=mse_loss)
    rows = [inputs for inputs, _ in BATCHES]
    torch.optim.swa_utils.update_bn(rows, alone)
    torch.optim.swa_utils.update_bn(rows, model)
    return [[*norm.running_mean.tolist(), *norm.running_var.tolist()] for norm in (net[0], alone)]


found = {kind: {layout: run(layout, kind) for layout in ("dp=2", "shard=2")} for kind in CASES}
finish({**found, "recalibrated": {layout: recalibrated(layout) for layout in ("dp=2", "shard=2")}})
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("buffers"))


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("kind", ["samples", "large", "seen"])
def test_a_buffer_that_depends_on_the_samples_of_a_rank_is_refused(found, kind, layout):
    assert "on the first batch, buffer kept differs" in found[kind][layout]


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_statistics_of_the_same_rows_on_all_ranks_are_those_of_one_process(found, layout):
    several, one = found["recalibrated"][layout]
    assert several == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize(("kind", "expected"), [("calls", 10), ("is begun", 1)])
def test_a_buffer_that_depends_on_calls_only_is_that_of_one_process(found, kind, expected, layout):
    assert found[kind][layout] == [expected, 10]
