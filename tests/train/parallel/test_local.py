"""Do replicas that train alone for some steps meet as local SGD and DiLoCo say?"""

from __future__ import annotations

import json

import pytest
from tests.train.launching import on_ranks

from paceline.core.errors import UsageError
from paceline.train.recipe import made

# Each rank also plays both replicas, by hand, in one process.
TRAINS = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from paceline.core.errors import UsageError
from paceline.train import Engine

torch.set_num_threads(1)
INPUTS = torch.randn(12, 8, 4, generator=torch.Generator().manual_seed(0))  # steps, samples, width
TARGET = torch.randn(12, 8, 4, generator=torch.Generator().manual_seed(1))
out = Path(sys.argv[1])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def together(optimizer):
    model = net()
    updates = optimizer(model)
    for number in range(12):
        mse_loss(model(INPUTS[number]), TARGET[number]).backward()
        updates.step()
        updates.zero_grad()
    return model


def by_hand(optimizer, every, lr, momentum):
    begun, replicas = net(), [net(), net()]
    inner = [optimizer(model) for model in replicas]
    velocity = [torch.zeros_like(p) for p in begun.parameters()]
    for number in range(12):
        for part, (model, updates) in enumerate(zip(replicas, inner)):
            own = slice(4 * part, 4 * part + 4)
            mse_loss(model(INPUTS[number, own]), TARGET[number, own]).backward()
            updates.step()
            updates.zero_grad()
        if (number + 1) % every == 0:
            with torch.no_grad():
                for i, (a, one, two) in enumerate(zip(begun.parameters(), *(m.parameters() for m in replicas))):
                    d = a - (one + two) / 2
                    velocity[i] = momentum * velocity[i] + d
                    a -= lr * (d + momentum * velocity[i])
                    one.copy_(a)
                    two.copy_(a)
    return begun


def by_engine(optimizer, local, stop_at=None):
    engine = Engine({"layout": "dp=2", "local": local})
    model, _ = engine.setup(net(), optimizer, loss=mse_loss)
    part = slice(4 * engine.world.rank, 4 * engine.world.rank + 4)
    for number in range(12):
        if number == stop_at:  # as another run that goes on
            engine.save(out / "state")
            engine = Engine({"layout": "dp=2", "local": local})
            model, _ = engine.setup(net(), optimizer, loss=mse_loss)
            engine.load(out / "state")
        engine.train_batch(INPUTS[number, part], TARGET[number, part])
        engine.step()
        if number == 0 and local["every"] > 1:
            try:
                engine.save(out / "early")
            except UsageError as error:
                refused.append(str(error))
    return model


def apart(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters()))


refused = []
torch.distributed.init_process_group("gloo")
diloco = {"every": 3, "outer_lr": 0.7, "outer_momentum": 0.9}
found = {
    "every step": apart(by_engine(sgd, {"every": 1}), together(sgd)),
    "local sgd": apart(by_engine(sgd, {"every": 4}), by_hand(sgd, 4, 1.0, 0.0)),
    "diloco": apart(by_engine(adam, diloco), by_hand(adam, 3, 0.7, 0.9)),
    "gone on": apart(by_engine(adam, diloco, stop_at=6), by_hand(adam, 3, 0.7, 0.9)),
    "not together": apart(together(adam), by_hand(adam, 3, 0.7, 0.9)),
    "refused": refused,
}
if torch.distributed.get_rank() == 0:
    (out / "found.json").write_text(json.dumps(found))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    (folder / "train.py").write_text(TRAINS)
    ran = on_ranks(2, folder / "train.py", folder)
    assert ran.returncode == 0, ran.stderr[:4000]
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("what", ["every step", "local sgd", "diloco", "gone on"])
def test_replicas_meet_as_by_hand(found, what):
    """Meeting after each step of plain SGD is training together; a checkpoint keeps the outer momentum."""
    assert found[what] < 1e-6
    assert found["not together"] > 1e-3


def test_replicas_that_differ_are_not_saved(found):
    assert "save() after 1 steps, when the replicas differ" in found["refused"][0]
    assert "a multiple of local.every = 4" in found["refused"][0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"layout": "dp=2,tp=2", "local": {"every": 2}}, "use a layout with dp only"),
        ({"local": {"every": 2}}, "use a layout with dp only"),
        ({"layout": "dp=2", "local": {"every": 0}}, "whole number of steps"),
        ({"layout": "dp=2", "local": {"every": 2, "outer_momentum": 1.0}}, "DiLoCo has 0.7 and 0.9"),
    ],
)
def test_what_is_wrong_is_named(content, says):
    with pytest.raises(UsageError, match=says):
        made(content)
