"""Is the moving average of the parameters that of one process, on any layout and after a checkpoint of another?"""

from __future__ import annotations

import json

import pytest
import torch
from tests.train.launching import on_ranks
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paceline.core.errors import UsageError
from paceline.train import Engine
from paceline.train.recipe import made

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from paceline.train import Engine

OUT = Path(sys.argv[1])
DRAWN = torch.Generator().manual_seed(0)
BATCHES = [(torch.randn(8, 4, generator=DRAWN), torch.randn(8, 2, generator=DRAWN)) for _ in range(5)]


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x)))


def net():
    torch.manual_seed(5)
    model = nn.Sequential(Mlp(), nn.LayerNorm(4), Mlp(), nn.Linear(4, 2))
    model[1].weight.requires_grad_(False)
    return model


def sgd(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, momentum=0.9)


def engine_of(layout):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}, "ema": {"decay": 0.7}})
    engine.setup(net(), sgd, loss=mse_loss)
    return engine


def train(engine, batches):
    parts, part = engine.world.layout.samples, engine.world.sample_part
    for inputs, target in batches:
        engine.train_batch(inputs.chunk(parts)[part], target.chunk(parts)[part])
        engine.step()


def exported(engine, name):
    path = OUT.parent / f"{name}.pt"
    engine.export(path)
    return {name: value.tolist() for name, value in torch.load(path).items()}


def found(layout, source):
    engine = engine_of(layout)
    if source is None:
        train(engine, BATCHES[:2])
    else:
        engine.load(OUT.parent / source)
    engine.save(OUT.parent / layout)
    train(engine, BATCHES[2:4])
    with engine.averaged():
        average = exported(engine, "average")
        loss = engine.evaluate(BATCHES)["loss"]
    train(engine, BATCHES[4:])
    return {"average": average, "loss": loss, "model": exported(engine, "model")}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    results, source = {}, None
    for layout in sys.argv[2:]:
        results[layout] = found(layout, source)
        source = layout
    if torch.distributed.get_rank() == 0:
        OUT.write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""
LAYOUTS = ["dp=2,shard=2", "shard=2,tp=2", "dp=2,pp=2", "tp=2,pp=2", "shard=2,pp=2", "dp=4", "shard=4"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("average")
    program, result = folder / "program.py", folder / "result.json"
    program.write_text(PROGRAM)
    ran = on_ranks(4, program, result, *LAYOUTS, timeout_s=200)
    assert result.exists(), ran.stderr[-4000:]
    return json.loads(result.read_text())


@pytest.fixture(scope="module")
def by_hand():
    program = {"__name__": "program"}
    argv = ["program", "out"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", argv)
        exec(PROGRAM, program)
    model = program["net"]()
    optimizer, average = program["sgd"](model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    for number, (inputs, target) in enumerate(program["BATCHES"]):
        mse_loss(model(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number < 4:
            average.update_parameters(model)
    with torch.no_grad():
        losses = [mse_loss(average(inputs), target).item() for inputs, target in program["BATCHES"]]
    return {"average": average.module.state_dict(), "loss": sum(losses) / 5, "model": model.state_dict()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", ["average", "model"])
def test_what_is_exported_is_that_of_one_process(found, by_hand, layout, what):
    """All but the first layout go on from a checkpoint of the one before; the model goes on as if not averaged."""
    assert sorted(found[layout][what]) == sorted(by_hand[what])
    for name, value in by_hand[what].items():
        assert torch.allclose(torch.tensor(found[layout][what][name]), value, atol=1e-5), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_average_is_evaluated_as_on_one_process(found, by_hand, layout):
    assert found[layout]["loss"] == pytest.approx(by_hand["loss"], rel=1e-5)
    assert by_hand["average"]["3.weight"].tolist() != by_hand["model"]["3.weight"].tolist()


def engine_of(**recipe):
    engine = Engine(recipe)
    torch.manual_seed(0)
    engine.setup(nn.Linear(2, 1), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=mse_loss)
    return engine


@pytest.mark.parametrize("call", ["step", "save", "load"])
def test_inside_averaged_a_run_neither_trains_nor_saves(tmp_path, call):
    engine = engine_of(ema={"decay": 0.9})
    engine.save(tmp_path / "first")
    engine.train_batch(torch.ones(2, 2), torch.ones(2, 1))
    arguments = () if call == "step" else (tmp_path / "first",)
    with engine.averaged(), pytest.raises(UsageError, match=rf"{call}\(\) inside `with engine.averaged\(\):`"):
        getattr(engine, call)(*arguments)
    assert getattr(engine, call)(*arguments) is not engine


def test_a_skipped_step_does_not_count():
    engine = engine_of(ema={"decay": 0.9}, precision={"autocast": "fp16"})
    engine.train_batch(torch.full((2, 2), float("inf")), torch.ones(2, 1))
    assert not engine.step().applied
    assert engine._average.updates == 0


def test_what_is_not_allowed_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"set ema.decay \(--ema\)"), engine_of().averaged():
        pass
    with pytest.raises(UsageError, match="ema.decay = 1 is not allowed; it takes a number from 0 to below 1"):
        made({"ema": {"decay": 1}})
    with pytest.raises(UsageError, match=r"\[ema\] averages parameters that all ranks share"):
        made({"ema": {"decay": 0.9}, "layout": "dp=2", "local": {"every": 2}})
    engine_of().save(tmp_path / "without")
    with pytest.raises(UsageError, match=r"has no ema_updates: it was saved .* without a schedule or \[ema\]"):
        engine_of(ema={"decay": 0.9}).load(tmp_path / "without")
