"""Does one process with layers on two devices train the same model, and is it refused what cannot be cut?

A machine without GPUs has the CPU and `meta`, which has shapes and no numbers: what is moved is seen there, and that
the numbers are the same is seen with both parts on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from paceline.core.errors import UsageError
from paceline.train import Engine
from paceline.train.parallel.layers import places, spread

INPUTS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
TARGET = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4))


def trained(recipe, folder=None):
    engine = Engine({"optimizer": {"clip_norm": 0.1}, "memory": {"micro_batches": 2}, **recipe})
    model, _ = engine.setup(net(), lambda m: torch.optim.AdamW(m.parameters(), lr=0.01), loss=mse_loss)
    losses = []
    for _ in range(4):
        engine.train_batch(INPUTS, TARGET)
        losses.append(engine.loss())
        engine.step()
    if folder is not None:
        engine.save(folder)
    return losses, model


def test_two_parts_train_as_one(tmp_path):
    losses, model = trained({"layers": {"devices": ["cpu", "cpu"]}}, tmp_path)
    expected, whole = trained({})
    assert losses == expected
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), whole.parameters()))
    engine = Engine()
    alone, _ = engine.setup(net(), lambda m: torch.optim.AdamW(m.parameters(), lr=0.01))
    engine.load(tmp_path)
    assert all(torch.equal(own, other) for own, other in zip(alone.parameters(), whole.parameters()))


def test_activations_go_to_the_device_of_the_next_part():
    """The dearest layer, 64 to 8, begins the second part: 4 x 64 is before it, 8 x 4 behind it."""
    model = net()
    spread(model, places(["cpu", "meta"]))
    where = [next(layer.parameters()).device.type for layer in (model[0], model[2], model[4])]
    seen = []
    for layer in model:
        layer.register_forward_hook(lambda _, given, output: seen.append((given[0].device.type, output.device.type)))
    output = model(INPUTS)
    assert where == ["cpu", "meta", "meta"]
    assert seen[0] == ("cpu", "cpu")
    assert seen[-1] == ("meta", "meta")
    assert output.shape == (8, 4)


def tied():
    model = net()
    model.append(nn.Linear(4, 64))
    model[5].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "devices", "says"),
    [
        (nn.Linear(4, 4), ["cpu", "cpu"], "Linear is not an nn.Sequential"),
        (nn.Sequential(nn.Linear(4, 4)), ["cpu", "cpu"], "2 devices for a model of 1 layers"),
        (tied(), ["cpu", "cpu"], "weight is shared by parts 0 and 1"),
        (net(), ["cpu", "gpu:1"], "'gpu:1' is no device"),
        (net(), ["cpu", "cuda:99"], "'cuda:99' is not there; torch sees"),
    ],
    ids=["no row", "too short", "shared", "no device", "not there"],
)
def test_what_cannot_be_spread_is_refused(model, devices, says):
    engine = Engine({"layers": {"devices": devices}})
    with pytest.raises(UsageError, match=says):
        engine.setup(model, lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
