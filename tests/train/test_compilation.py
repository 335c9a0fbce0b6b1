"""Are blocks compiled, and is training what it is uncompiled? Without the C++ compiler, which takes long."""

from __future__ import annotations

import json

import pytest
import torch
from tests.train.launching import on_ranks

from paceline.core.errors import EnvironmentFault
from paceline.train import Engine

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from paceline.train import Engine

COMPILE, CALLS = torch.compile, []
DRAWN = torch.Generator().manual_seed(0)
INPUTS, TARGET = torch.randn(8, 4, generator=DRAWN), torch.randn(8, 2, generator=DRAWN)


def without_cpp(function, mode=None):
    CALLS.append(mode)
    return COMPILE(function, backend="aot_eager")


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.fc2(self.norm(self.fc1(x)).relu())


class Batch(Mlp):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)


def trained(block, recipe):
    'Losses of three steps and evaluations, and what torch compiled.'
    torch.manual_seed(5)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    CALLS.clear()
    blocks = [block(), block()] if block else [nn.Linear(4, 4), nn.ReLU()]
    engine = Engine({"memory": {"micro_batches": 2}, **recipe})
    sgd = lambda m: torch.optim.SGD(m.parameters(), 0.1)
    model, _ = engine.setup(nn.Sequential(*blocks, nn.Linear(4, 2)), sgd, loss=mse_loss)
    parts, part, losses = engine.world.layout.samples, engine.world.sample_part, []
    for _ in range(3):
        engine.train_batch(INPUTS.chunk(parts)[part], TARGET.chunk(parts)[part])
        losses.append(engine.loss())
        engine.step()
        losses.append(engine.evaluate([(INPUTS, TARGET)])["loss"])
    names = sorted(name.removeprefix("module.") for name in model.state_dict())
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"losses": losses, "names": names, "graphs": graphs, "calls": list(CALLS)}


torch.set_num_threads(1)
torch.compile = without_cpp
torch.distributed.init_process_group("gloo")
results = []
for block, recipe in ((globals().get(name), recipe) for name, recipe in json.loads(sys.argv[2])):
    results.append([trained(block, {**recipe, "compute": compute}) for compute in ({}, {"compile": "default"})])
if torch.distributed.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(results))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
CASES = [
    ("Mlp", {"layout": "dp=2"}),
    ("Mlp", {"layout": "shard=2"}),
    ("Mlp", {"layout": "shard=2", "memory": {"micro_batches": 2, "checkpoint_every": 1}}),
    ("Mlp", {"layout": "dp=2", "precision": {"autocast": "bf16"}, "memory": {"selective": True}}),
    ("Batch", {"layout": "dp=2"}),
    ("Batch", {"layout": "shard=2"}),
    (None, {"layout": "dp=2"}),
    (None, {"layout": "shard=2"}),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compilation")
    program, result = folder / "program.py", folder / "result.json"
    program.write_text(PROGRAM)
    ran = on_ranks(2, program, result, json.dumps(CASES), timeout_s=150)
    assert result.exists(), ran.stderr[-4000:]
    return json.loads(result.read_text())


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{name} {recipe['layout']}" for name, recipe in CASES])
def test_compiled_blocks_train_as_they_are(found, number):
    plain, compiled = found[number]
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-3 if "precision" in CASES[number][1] else 1e-5)
    assert (plain["graphs"], plain["calls"]) == (0, [])
    assert compiled["graphs"] > 0
    assert compiled["calls"] == [None] * (2 if CASES[number][0] else 1)
    assert compiled["names"] == plain["names"]


def test_what_torch_cannot_compile_is_an_error_that_says_what_to_do(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("libcuda.so cannot be found\nmore")

    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, mode=None: compiled(function, backend=broken))
    engine = Engine({"compute": {"compile": "default"}})
    engine.setup(torch.nn.Linear(2, 2), lambda m: torch.optim.SGD(m.parameters()), loss=torch.nn.functional.mse_loss)
    try:
        with pytest.raises(
            EnvironmentFault, match=r"'default'.*RuntimeError: libcuda.so cannot be found\)\. Leave out"
        ):
            engine.train_batch(torch.ones(2, 2), torch.ones(2, 2))
    finally:
        torch._dynamo.reset()
    with pytest.raises(ZeroDivisionError), engine.micro_step():
        raise ZeroDivisionError
