"""Is the moving average of the parameters that of one process, on any layout and after a checkpoint of another?"""

from __future__ import annotations

import pytest
import torch
from tests.train.launching import results_of
from tests.train.small_model import BATCHES, linear_engine, sgd, small_model
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paceline.core.errors import UsageError
from paceline.train.recipe import made

PROGRAM = """
import sys
import torch
from tests.train.small_model import BATCHES, begin, engine_of, finish, sgd, small_model, train

OUT = begin()


def exported(engine, name):
    path = OUT.parent / f"{name}.pt"
    engine.export(path)
    return {name: value.tolist() for name, value in torch.load(path).items()}


def found(layout, source):
    engine = engine_of(layout, small_model(freeze=(1,)), sgd, ema={"decay": 0.7})
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


results, source = {}, None
for layout in sys.argv[2:]:
    results[layout] = found(layout, source)
    source = layout
finish(results)
"""
LAYOUTS = ["dp=2,shard=2", "shard=2,tp=2", "dp=2,pp=2", "tp=2,pp=2", "shard=2,pp=2", "dp=4", "shard=4"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 4, tmp_path_factory.mktemp("average"), *LAYOUTS, timeout_s=200)


@pytest.fixture(scope="module")
def by_hand():
    model = small_model(freeze=(1,))
    optimizer, average = sgd(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    for number, (inputs, target) in enumerate(BATCHES):
        mse_loss(model(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number < 4:
            average.update_parameters(model)
    with torch.no_grad():
        losses = [mse_loss(average(inputs), target).item() for inputs, target in BATCHES]
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


@pytest.mark.parametrize("call", ["step", "save", "load"])
def test_inside_averaged_a_run_neither_trains_nor_saves(tmp_path, call):
    engine = linear_engine(ema={"decay": 0.9})
    engine.save(tmp_path / "first")
    engine.train_batch(torch.ones(2, 2), torch.ones(2, 1))
    arguments = () if call == "step" else (tmp_path / "first",)
    with engine.averaged(), pytest.raises(UsageError, match=rf"{call}\(\) inside `with engine.averaged\(\):`"):
        getattr(engine, call)(*arguments)
    assert getattr(engine, call)(*arguments) is not engine


def test_a_skipped_step_does_not_count():
    engine = linear_engine(ema={"decay": 0.9}, precision={"autocast": "fp16"})
    engine.train_batch(torch.full((2, 2), float("inf")), torch.ones(2, 1))
    assert not engine.step().applied
    assert engine._average.updates == 0


def test_what_is_not_allowed_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"set ema.decay \(--ema\)"), linear_engine().averaged():
        pass
    with pytest.raises(UsageError, match="ema.decay = 1 is not allowed; it takes a number from 0 to below 1"):
        made({"ema": {"decay": 1}})
    with pytest.raises(UsageError, match=r"\[ema\] averages parameters that all ranks share"):
        made({"ema": {"decay": 0.9}, "layout": "dp=2", "local": {"every": 2}})
    linear_engine().save(tmp_path / "without")
    with pytest.raises(UsageError, match=r"has no ema_updates: it was saved .* without a schedule or \[ema\]"):
        linear_engine(ema={"decay": 0.9}).load(tmp_path / "without")
