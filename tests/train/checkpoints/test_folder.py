"""Are checkpoints whole at any time, with what a program adds, and exports those of one process?"""

from __future__ import annotations

import json

import pytest
import torch
from tests.train.launching import on_ranks
from torch import nn

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.train import Engine
from paceline.train.checkpoints import folder as checkpoints

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from paceline.train import Engine

OUT = Path(sys.argv[1])
INPUTS, TARGET = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.ones(8, 2)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x)))


def net():
    torch.manual_seed(5)
    made = nn.Sequential(Mlp(), nn.LayerNorm(4), Mlp(), nn.Linear(4, 2))
    made[1].register_buffer("scale", torch.tensor([1.0, 2.0]))
    return made


def engine_of(layout, freeze=()):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}})
    made = net()
    for number in freeze:
        made[number].requires_grad_(False)
    adam = lambda m: torch.optim.AdamW(m.parameters(), 0.1)
    engine.setup(made, adam, loss=nn.functional.mse_loss)
    return engine


def step(engine, steps=1):
    for _ in range(steps):
        parts, part = engine.world.layout.samples, engine.world.sample_part
        engine.train_batch(INPUTS.chunk(parts)[part], TARGET.chunk(parts)[part])
        loss = engine.loss()
        engine.step()
    return loss


def frozen(layout, before, after):
    'A run that goes on with other weights frozen.'
    folder = OUT.parent / f"{layout} {before} {after}"
    engine = engine_of(layout, before)
    step(engine, 2)
    engine.save(folder)
    again = engine_of(layout, after)
    again.load(folder)
    return step(again, 2)


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
found = {"before": {name: value.tolist() for name, value in net().state_dict().items()}}
for layout in ("dp=2", "shard=2", "tp=2", "pp=2"):
    engine = engine_of(layout)
    for kind in ("safetensors", "pt"):
        engine.export(OUT.parent / f"{layout}.{kind}")
    step(engine)
    engine.save(OUT.parent / layout, extra={"epoch": 3, "best": torch.ones(2)})
    step(engine)
    engine.save(OUT.parent / layout, extra={"epoch": 4, "best": torch.ones(2)})
    again = engine_of(layout)
    extra = again.load(OUT.parent / layout)
    found[layout] = [extra["epoch"], extra["best"].tolist(), step(engine), step(again)]
    found[f"{layout} frozen"] = [
        frozen(layout, before, after) for before, after in (((), ()), ((), (0,)), ((0,), (0,)), ((0,), ()))
    ]
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
LAYOUTS = ["dp=2", "shard=2", "tp=2", "pp=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    program, result = folder / "program.py", folder / "result.json"
    program.write_text(PROGRAM)
    ran = on_ranks(2, program, result, timeout_s=150)
    assert result.exists(), ran.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_gets_back_what_it_added(found, layout):
    epoch, best, loss, again = found[layout]
    assert (epoch, best) == (4, [1.0, 1.0])
    assert loss == pytest.approx(again, rel=1e-6)


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
    engine = Engine()
    engine.setup(nn.Linear(2, 1), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=nn.functional.mse_loss)
    for _ in range(steps):
        engine.train_batch(torch.ones(2, 2), torch.ones(2, 1))
        engine.step()
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
    engine = Engine()
    engine.setup(nn.Linear(2, 1), lambda m: torch.optim.SGD(m.parameters(), 0.1))
    engine.load(folder)
    assert engine.steps == (2 if killed in ("in between", "before the end") else 1)
    assert (folder / "notes.txt").read_text() == "mine"
    saved(folder, 3)
    assert (folder / "notes.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last"]


def test_another_ending_is_refused(tmp_path):
    engine = Engine()
    engine.setup(nn.Linear(2, 1), lambda m: torch.optim.SGD(m.parameters(), 0.1))
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
