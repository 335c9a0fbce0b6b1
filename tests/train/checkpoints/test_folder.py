"""Are checkpoints whole at any time, with what a program adds, and exports those of one process?"""

from __future__ import annotations

import json

import pytest
import torch
from tests.train.launching import results_of
from tests.train.small_model import linear_engine

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.train.checkpoints import folder as checkpoints

PROGRAM = """
import torch
from tests.train.small_model import begin, engine_of, finish, small_model, step
from torch.optim import lr_scheduler

from paceline.train import Engine

OUT = begin()


def with_buffer(freeze=()):
    model = small_model(freeze)
    model[1].register_buffer("scale", torch.tensor([1.0, 2.0]))
    return model


def frozen(layout, before, after):
    'A run that goes on with other weights frozen.'
    folder = OUT.parent / f"{layout} {before} {after}"
    engine = engine_of(layout, with_buffer(before))
    step(engine, 2)
    engine.save(folder)
    again = engine_of(layout, with_buffer(after))
    again.load(folder)
    return step(again, 2)


def scheduled(layout, sizes=(8, 16)):
    'A learning rate and a schedule for each layer; saved and loaded with the same layout.'
    def make(model):
        layers = [part for part in model.modules() if isinstance(part, torch.nn.Linear)]
        rates = {size: rate for size, rate in zip(sizes, (1e-3, 3e-2))}
        groups = [{"params": list(layer.parameters()), "lr": rates[layer.in_features]} for layer in layers]
        return torch.optim.SGD(groups, 1e-2)

    def schedule(made):
        parts = [lr_scheduler.LambdaLR(made, lambda n: 0.9**n), lr_scheduler.ConstantLR(made)]
        return lr_scheduler.SequentialLR(made, parts, [3])

    def built():
        torch.manual_seed(5)
        engine = Engine({"layout": layout})
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        _, optimizer = engine.setup(model, make, loss=torch.nn.functional.mse_loss, schedule=schedule)
        return engine, optimizer

    def stepped(engine, optimizer):
        torch.manual_seed(6)
        for _ in range(2):
            engine.train_batch(torch.randn(8, 8), torch.randn(8, 4))
            loss = engine.loss()
            engine.step()
        return [float(loss), *sorted(group["lr"] for group in optimizer.param_groups)]

    first = built()
    stepped(*first)
    first[0].save(OUT.parent / f"{layout} scheduled")
    again = built()
    again[0].load(OUT.parent / f"{layout} scheduled")
    every = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, [stepped(*first), stepped(*again)])
    return every


found = {"before": {name: value.tolist() for name, value in with_buffer().state_dict().items()}}
for layout in ("dp=2", "shard=2", "tp=2", "pp=2"):
    engine = engine_of(layout, with_buffer())
    for kind in ("safetensors", "pt"):
        engine.export(OUT.parent / f"{layout}.{kind}")
    step(engine)
    engine.save(OUT.parent / layout, extra={"epoch": 3, "best": torch.ones(2)})
    step(engine)
    engine.save(OUT.parent / layout, extra={"epoch": 4, "best": torch.ones(2)})
    again = engine_of(layout, with_buffer())
    extra = again.load(OUT.parent / layout)
    found[layout] = [extra["epoch"], extra["best"].tolist(), step(engine), step(again)]
    if layout != "tp=2":  # its model has nothing to split
        found[f"{layout} scheduled"] = scheduled(layout)
    found[f"{layout} frozen"] = [
        frozen(layout, before, after) for before, after in (((), ()), ((), (0,)), ((0,), (0,)), ((0,), ()))
    ]
finish(found)
"""
LAYOUTS = ["dp=2", "shard=2", "tp=2", "pp=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    results_of(PROGRAM, 2, folder)
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_gets_back_what_it_added(found, layout):
    epoch, best, loss, again = found[layout]
    assert (epoch, best) == (4, [1.0, 1.0])
    assert loss == pytest.approx(again, rel=1e-6)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "pp=2"])
def test_each_layer_keeps_its_learning_rate_and_schedule(found, layout):
    """With pp each rank has the parameter groups of its own layers."""
    for on, again in found[f"{layout} scheduled"]:
        assert again == pytest.approx(on, rel=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_an_export_is_the_state_dict_of_one_process(folder, found, layout, kind):
    path = folder / f"{layout}.{kind}"
    state = pytest.importorskip("safetensors.torch").load_file(path) if kind == "safetensors" else torch.load(path)
    assert {name: value.tolist() for name, value in state.items()} == found["before"]
    assert sorted(state) == sorted(found["before"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_goes_on_with_other_weights_frozen(found, layout):
    assert found[f"{layout} frozen"] == pytest.approx(found["dp=2 frozen"], rel=1e-5)


def saved(folder, steps):
    engine = linear_engine(steps)
    engine.save(folder)
    return engine


@pytest.mark.parametrize("killed", ["while it is written", "before it is put in place", "in between", "before the end"])
def test_a_run_that_is_killed_in_a_save_loses_nothing(tmp_path, monkeypatch, killed):
    """The earlier checkpoint or the new one is there, whole, and so are other files in the folder."""
    folder = tmp_path / "last"
    saved(folder, 1)
    (folder / "notes.txt").write_text("mine")

    def kill(*_, **__):
        raise KeyboardInterrupt

    rename = type(folder).rename
    if killed == "while it is written":
        monkeypatch.setattr("torch.distributed.checkpoint.save", kill)
    if killed == "before it is put in place":
        monkeypatch.setattr(checkpoints, "put_in_place", kill)
    if killed == "in between":
        monkeypatch.setattr(
            type(folder), "rename", lambda path, to: kill() if "part" in path.name else rename(path, to)
        )
    if killed == "before the end":
        monkeypatch.setattr("shutil.rmtree", lambda path, **_: kill() if "old" in path.name else None)
    with pytest.raises(KeyboardInterrupt):
        saved(folder, 2)
    monkeypatch.undo()
    engine = linear_engine()
    engine.load(folder)
    assert engine.steps == (2 if killed in ("in between", "before the end") else 1)
    assert (folder / "notes.txt").read_text() == "mine"
    saved(folder, 3)
    assert (folder / "notes.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last"]


def test_another_ending_is_refused(tmp_path):
    engine = linear_engine()
    with pytest.raises(UsageError, match=r"must end in \.safetensors"):
        engine.export(tmp_path / "model.onnx")


@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_that_cannot_be_written_is_named_with_its_cause(tmp_path, monkeypatch, wait):
    """The tensors fail, not the last step; the earlier checkpoint stays."""
    saved(tmp_path / "last", 1)
    engine = saved(tmp_path / "other", 2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.FileSystemWriter.write_data", full)
    says = r"last could not be written \(OSError: \[Errno 28\] No space left on device\); an earlier checkpoint"
    with pytest.raises(EnvironmentFault, match=says):
        engine.save(tmp_path / "last", wait=wait)
        engine.close()
    monkeypatch.undo()
    engine.load(tmp_path / "last")
    assert engine.steps == 1


DRAWS = """
import random
import sys
import numpy as np
import torch
from tests.train.small_model import BATCHES, begin, engine_of, finish, train

layout, loaded, saved = sys.argv[2:]
begin()
random.seed(3), np.random.seed(3), torch.manual_seed(3)
engine = engine_of(layout)
if loaded:
    engine.load(loaded)
drawn = []
for step in range(1 if loaded else 0, 2):
    train(engine, BATCHES[:1])
    drawn.append([random.random(), np.random.rand(), torch.rand(()).item()])
    if step == 0:
        engine.save(saved)
engine.close()
finish(drawn)
"""


@pytest.mark.parametrize(("before", "after"), [("", "dp=2"), ("dp=2", ""), ("shard=2", "dp=2"), ("dp=2", "dp=2")])
def test_random_numbers_of_the_program_continue(tmp_path, before, after):
    """The numbers of Python, NumPy and torch on rank 0, which are those of one process, on any layout."""
    drawn = []
    for name, layout, loaded in (("first", before, ""), ("second", after, str(tmp_path / "saved"))):
        (tmp_path / name).mkdir()
        ranks = 2 if layout else 1
        drawn.append(results_of(DRAWS, ranks, tmp_path / name, layout, loaded, str(tmp_path / "saved")))
    assert drawn[1] == drawn[0][1:]
