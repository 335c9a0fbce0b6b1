"""Models that the engine does not know must not compute statistics over the samples of one rank."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import copy
import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from tests.train.small_model import begin, finish, sgd
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = begin()
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
ORIGINALS = F.batch_norm, F.instance_norm


class Channels(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x[:, :, None] * torch.ones(3)).sum(-1)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.variance, training=self.training)


class EachAlone(nn.Module):
    def forward(self, x):
        return F.batch_norm(x.view(1, -1, 2), None, None, training=True).view(x.shape)


class Weights(nn.Linear):
    def forward(self, x):
        return F.linear(x, F.batch_norm(self.weight[None], None, None, training=True)[0], self.bias)


LAYERS = {
    "module": lambda: nn.BatchNorm1d(4),
    "no running statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "channels": lambda: Channels(nn.BatchNorm1d(4)),
    "function": Own,
    "instance": lambda: Channels(nn.InstanceNorm1d(4, track_running_stats=True)),
    "instance alone": lambda: Channels(nn.InstanceNorm1d(4)),
    "each alone": EachAlone,
    "weights": lambda: Weights(4, 4),
    "layer": lambda: nn.LayerNorm(4),
}


def run(layout, layer="module", where="inside", source="own", mode="train", first_step=True, size=8):
    torch.manual_seed(0)
    recipe = {"checks": {"first_step": first_step}, **({"layout": layout} if layout else {})}
    net = nn.Sequential(nn.Linear(4, 4), LAYERS[layer]() if source != "own" else nn.BatchNorm1d(4), nn.Linear(4, 2))
    teacher = nn.Sequential(nn.Linear(4, 4), LAYERS[layer](), nn.Linear(4, 2)) if source == "own" else None
    if source in ("before", "engine"):
        teacher = copy.deepcopy(net)
        teacher[2].bias.data += 1
    engine, losses = Engine(recipe), []

    def distance(output, x):
        return mse_loss(output, teacher(x)) if where == "loss" else mse_loss(output, output.detach() * 0 + 1)

    try:
        net, _ = engine.setup(net, sgd, loss=distance)
        if source == "after":
            teacher = copy.deepcopy(net)
        if source == "engine":
            teacher, _ = Engine(recipe).setup(teacher, sgd)
        teacher.requires_grad_(source == "engine").train(mode == "train")
        for x, in engine.loader(DataLoader(TensorDataset(X), size)):
            if where == "loss":
                engine.train_batch(x, x)
            else:
                with torch.no_grad():
                    target = teacher(x) if where == "before" else None
                with engine.micro_step():
                    with torch.no_grad():
                        target = teacher(x) if target is None else target
                    engine.backward(mse_loss(net(x), target))
            losses.append(engine.loss())
            engine.step()
            if where == "whole":
                teacher.train()(X)
                teacher.eval()
        teacher(X)
        return losses
    except UsageError as error:
        return str(error)
    finally:
        engine.close()
        if (F.batch_norm, F.instance_norm) != ORIGINALS:
            sys.exit("the functions of torch are not restored")


CASES = {
    "inside": {}, "before": {"where": "before"}, "loss": {"where": "loss"}, "copied before": {"source": "before"},
    "one sample": {"layer": "channels", "size": 2}, "no running statistics": {"layer": "no running statistics"},
    "function": {"layer": "function"}, "instance": {"layer": "instance"},
    "evaluated": {"mode": "eval"}, "copied after": {"source": "after"}, "set up": {"source": "engine"},
    "instance alone": {"layer": "instance alone"}, "each alone": {"layer": "each alone"},
    "weights": {"layer": "weights"}, "layer": {"layer": "layer"},
    "evaluated in loss": {"where": "loss", "mode": "eval"}, "whole after step": {"where": "whole", "mode": "eval"},
    "own weights": {"layer": "weights", "source": "after"},
    "own, each alone": {"layer": "each alone", "source": "after"},
    "switched off": {"first_step": False},
}
found = {name: {layout: run(layout, **case) for layout in LAYOUTS} for name, case in CASES.items()}
finish(found)
"""

REFUSED = [
    "inside",
    "before",
    "loss",
    "one sample",
    "no running statistics",
    "function",
    "instance",
    "copied before",
]
ALLOWED = [
    "evaluated",
    "copied after",
    "set up",
    "instance alone",
    "each alone",
    "weights",
    "layer",
    "evaluated in loss",
    "whole after step",
    "own weights",
    "own, each alone",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    results = {}
    for ranks, layouts in ((1, [""]), (2, ["dp=2", "shard=2"])):
        program = PROGRAM.replace("in LAYOUTS}", f"in {layouts}}}")
        found = results_of(program, ranks, tmp_path_factory.mktemp("statistics"), timeout_s=200)
        for case, result in found.items():
            results.setdefault(case, {}).update(result)
    return results


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("case", REFUSED)
def test_statistics_over_the_samples_of_one_rank_are_refused(found, case, layout):
    said = found[case][layout]
    assert "is not part of a model that setup() was given, and computes statistics over the samples of this" in said
    assert "Call eval() on that model" in said
    assert ("copy it after setup()" in said) == (layout == "dp=2")


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("case", ALLOWED)
def test_other_models_train_as_on_one_process(found, case, layout):
    if layout == "shard=2" and case in ("copied after", "own weights", "own, each alone"):
        assert "copy.deepcopy()" in found[case][layout]
    else:
        assert found[case][layout] == pytest.approx(found[case][""], rel=1e-5)


def test_the_layer_and_the_model_are_named(found):
    assert "BatchNorm1d in Sequential is not part" in found["inside"]["dp=2"]
    assert "Own in Sequential is not part" in found["function"]["dp=2"]


def test_the_check_can_be_switched_off(found):
    assert len(found["switched off"]["dp=2"]) == 2
