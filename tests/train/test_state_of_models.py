"""Values that a model or a loss changes besides parameters and buffers are compared with those of one process."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import itertools
from collections import deque
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.train.small_model import BATCHES, begin, finish, sgd
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = begin()
RATES = [0.5, 1.0, 1.5]
FROM_GLOBAL = itertools.cycle(RATES)


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(4, 8), nn.Linear(8, 2), kind
        self.center, self.mean, self.calls = torch.zeros(8), 0.0, 0
        self.queue, self.last_hidden, self.seen = [torch.zeros(1, 8)], None, deque(maxlen=4)
        self.own = {"own cycle": itertools.cycle(RATES), "list": iter(RATES * 9)}.get(kind)
        if kind == "generator":
            self.own = (rate for rate in RATES * 9)

    def forward(self, x):
        hidden = self.first(x).tanh()
        if self.kind == "center":
            hidden, self.center = hidden - self.center, 0.5 * self.center + 0.5 * hidden.detach().mean(0)
        if self.kind == "float":
            hidden, self.mean = hidden - self.mean, 0.5 * self.mean + 0.5 * float(hidden.detach().mean())
        if self.kind == "in place":
            hidden = hidden - self.center
            self.center += 0.1 * hidden.detach().mean(0)
        if self.kind == "queue":
            hidden = hidden + torch.cat(self.queue)[-4:].mean(0)
            self.queue.append(hidden.detach())
        if self.kind == "replaced":
            hidden = hidden + (0 if self.last_hidden is None else self.last_hidden.mean())
        self.last_hidden = hidden.detach()  # stored, and not used again by most kinds
        self.seen.append(float(hidden.detach().sum()))
        self.calls += 1
        if self.kind == "counter":
            hidden = hidden * min(1.0, 0.2 * self.calls)
        if self.own is not None:
            hidden = hidden * next(self.own)
        return self.last(hidden)


class FromGlobal(nn.Linear):
    def forward(self, x):
        return super().forward(x) * next(FROM_GLOBAL)


class Queued:
    def __init__(self):
        self.queue = torch.zeros(8, 2)

    def __call__(self, output, target):
        loss = mse_loss(output, target) + 0.1 * (output @ self.queue.T).square().mean()
        self.queue = torch.cat([target, self.queue])[:8]
        return loss


class Recorded:
    def __init__(self):
        self.history, self.calls = [], 0

    def __call__(self, output, target):
        self.calls += 1
        loss = mse_loss(output, target) * min(1.0, 0.2 * self.calls)
        self.history.append(float(loss.detach()))
        return loss


def run(layout, kind, loss, own_loop):
    torch.manual_seed(0)
    net, losses = FromGlobal(4, 2) if kind == "global cycle" else Net(kind), []
    function = {"queue of the loss": Queued, "recording loss": Recorded}.get(kind, lambda: loss)()
    global FROM_GLOBAL
    FROM_GLOBAL = itertools.cycle(RATES)
    if not layout:
        optimizer = sgd(net)
        for inputs, target in BATCHES:
            optimizer.zero_grad()
            value = function(net(inputs), target)
            value.backward()
            optimizer.step()
            losses.append(float(value))
        return losses
    try:
        engine = Engine({"layout": layout})
        model, _ = engine.setup(net, sgd, loss=function)
        for batch in BATCHES:
            inputs, target = (each.chunk(2)[engine.world.sample_part] for each in batch)
            if own_loop:
                with engine.micro_step():
                    engine.backward(function(model(inputs), target))
            else:
                engine.train_batch(inputs, target)
            losses.append(engine.loss())
            engine.step()
        return losses
    except UsageError as error:
        return str(error)


KINDS = ["plain", "center", "float", "in place", "queue", "replaced", "counter", "own cycle", "list", "generator",
         "global cycle", "queue of the loss", "recording loss"]
found = {}
for kind in KINDS:
    for own_loop in (False, True)[: 1 if "loss" in kind else 2]:
        for layout in ("", "dp=2", "shard=2"):
            found[f"{kind} {own_loop} {layout}"] = run(layout, kind, mse_loss, own_loop)
finish(found)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("states"), timeout_s=300)


BOTH = [False, True]
REFUSED = {
    "center": "Net.center", "float": "Net.mean", "in place": "Net.center", "queue": "Net.queue[1]",
    "replaced": "Net.last_hidden",
}  # fmt: skip


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("own_loop", BOTH)
@pytest.mark.parametrize("kind", REFUSED)
def test_attributes_that_are_computed_from_samples_and_used_later_are_refused(found, kind, own_loop, layout):
    said = found[f"{kind} {own_loop} {layout}"]
    assert f"{layout}: {REFUSED[kind]} gets another value on 2 ranks than on one, and later steps depend" in said


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_a_queue_in_a_loss_is_refused(found, layout):
    assert "the loss.queue gets another value on 2 ranks than on one" in found[f"queue of the loss False {layout}"]


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("own_loop", BOTH)
@pytest.mark.parametrize("kind", ["plain", "counter", "own cycle", "list", "generator", "global cycle"])
def test_other_states_train_as_on_one_process(found, kind, own_loop, layout):
    """Stored outputs, counters and iterators."""
    assert found[f"{kind} {own_loop} {layout}"] == pytest.approx(found[f"{kind} {own_loop} "], rel=1e-5)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_a_loss_that_records_its_values_trains_as_on_one_process(found, layout):
    assert found[f"recording loss False {layout}"] == pytest.approx(found["recording loss False "], rel=1e-5)
