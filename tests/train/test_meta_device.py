"""Does a model on the meta device get the values of a model that was created whole, and is it refused without any?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.train import meta_model
from tests.train.launching import on_ranks
from tests.train.meta_model import draw, net, on_meta
from torch import nn

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train import meta_device
from paceline.train.ranks.world import join
from paceline.train.recipe import made

PROGRAM = (
    Path(meta_model.__file__).read_text()
    + """
import json, sys
from pathlib import Path
from torch.nn.functional import mse_loss
from paceline.train import Engine

OUT = Path(sys.argv[1])
INPUTS, TARGET = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.ones(8, 2)


def engine_of(layout, model, **options):
    engine = Engine({"layout": layout})
    engine.setup(model, lambda m: torch.optim.AdamW(m.parameters(), 0.1), loss=mse_loss, **options)
    return engine


def values(engine, name):
    path = OUT.parent / f"{name}.pt"
    engine.export(path)
    return {name: value.tolist() for name, value in torch.load(path).items()}


def found(layout, name, seed, **options):
    torch.manual_seed(seed + torch.distributed.get_rank())  # rank 0's count
    engine = engine_of(layout, on_meta(), **options)
    drawn = torch.rand(1).item()
    before = values(engine, name)
    parts, part = engine.world.layout.samples, engine.world.sample_part
    engine.train_batch(INPUTS.chunk(parts)[part], TARGET.chunk(parts)[part])
    loss = engine.loss()
    engine.step()
    held = sum(getattr(p, "_local_tensor", p).numel() for p in engine._ready().arranged.held.parameters())
    return {"values": before, "drawn": drawn, "loss": loss, "held": held}


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
torch.manual_seed(7)
engine = engine_of("dp=4", net())
engine.save(OUT.parent / "checkpoint")
for kind in ("safetensors", "pt"):
    engine.export(OUT.parent / f"weights.{kind}")
sources = {"a checkpoint": OUT.parent / "checkpoint", "safetensors": OUT.parent / "weights.safetensors"}
sources |= {"a state dict": torch.load(OUT.parent / "weights.pt"), "a file of torch": str(OUT.parent / "weights.pt")}
results = {}
for layout in sys.argv[2:]:
    results[layout, "reset"] = found(layout, "reset", 5, init="reset_parameters")
    results[layout, "function"] = found(layout, "function", 5, init=draw)
    for name, weights in sources.items():
        results[layout, name] = found(layout, name, 5, init="reset_parameters", weights=weights)
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps([[*key, value] for key, value in results.items()]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
)
LAYOUTS = ["shard=4", "dp=2,shard=2", "shard=2,tp=2", "shard=2,pp=2"]
SOURCES = ["a checkpoint", "safetensors", "a state dict", "a file of torch"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meta")
    program, result = folder / "program.py", folder / "result.json"
    program.write_text(PROGRAM)
    ran = on_ranks(4, program, result, *LAYOUTS, timeout_s=200)
    assert result.exists(), ran.stderr[-4000:]
    return {(layout, name): value for layout, name, value in json.loads(result.read_text())}


def whole(seed, function=None):
    """A model that was created whole, and the next random number."""
    torch.manual_seed(seed)
    model = net()
    if function is not None:
        torch.manual_seed(seed)
        model.apply(function)
    return {name: value.tolist() for name, value in model.state_dict().items()}, torch.rand(1).item()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["reset", "function"])
def test_values_are_those_of_a_model_that_was_created_whole(found, layout, name):
    values, drawn = whole(5, draw if name == "function" else None)
    assert found[layout, name]["values"] == values
    assert found[layout, name]["drawn"] == drawn


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SOURCES)
def test_values_are_those_of_a_file(found, layout, name):
    assert found[layout, name]["values"] == whole(7)[0]


@pytest.mark.parametrize("name", ["reset", *SOURCES])
def test_it_trains_as_on_another_layout(found, name):
    losses = [found[layout, name]["loss"] for layout in LAYOUTS]
    assert losses == pytest.approx([losses[0]] * len(LAYOUTS), rel=1e-5)
    assert losses[0] > 0
    count = sum(value.numel() for value in net().parameters())
    assert found["shard=4", name]["held"] < 0.4 * count


def source(model, layout="shard=2", init="reset_parameters", weights=None, **recipe):
    return meta_device.source_of(model, made({"layout": layout, **recipe}), init, weights)


def partly():
    model = on_meta()
    model[0] = nn.Linear(3, 4)
    return model


def tied():
    model = on_meta()
    model[5].fc1 = model[1].fc1
    return model


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (on_meta, {"init": None}, r"such as 0.weight: pass setup\(..., init=\"reset_parameters\"\)"),
        (on_meta, {"init": "zeros"}, "init = 'zeros' is not allowed"),
        (on_meta, {"layout": "dp=2"}, "layout dp=2 needs values; create the model on the CPU, or use a layout with sh"),
        (on_meta, {"layout": "shard=2,cp=2"}, "use a layout with shard and without cp"),
        (on_meta, {"layout": "shard=2,pp=2", "pipeline": {"balance": "measured"}}, "use balance = 'counted'"),
        (partly, {}, "but 0.weight has values; create all"),
        (tied, {}, "1.fc1.weight and 5.fc1.weight share a parameter"),
        (net, {}, "has values already"),
    ],
)
def test_a_model_that_cannot_be_split_before_it_has_values_is_refused(model, options, says):
    with pytest.raises(UsageError, match=says):
        source(model(), **options)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4))


class Forgets(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.empty(4, dtype=torch.bool))
        self.weight = nn.Parameter(torch.empty(4))

    def reset_parameters(self):
        nn.init.ones_(self.weight)


def of_the_first_block(module):
    draw(module)
    if isinstance(module, nn.Sequential):
        nn.init.zeros_(module[1].fc1.weight)


def nothing(module):
    pass


@pytest.mark.parametrize(
    ("part", "init", "says"),
    [
        (Plain, "reset_parameters", r"7 \(Plain\) has no reset_parameters\(\)"),
        (Forgets, "reset_parameters", "no values to 7.mask"),
        (nn.Identity, nothing, "no values to 0.weight"),
        (nn.Identity, of_the_first_block, "a part of the model that is made separately"),
    ],
)
def test_tensors_that_are_left_without_values_are_refused(part, init, says):
    with torch.device("meta"):
        model = nn.Sequential(*net(), part())
    given = source(model, init=init)
    with pytest.raises(UsageError, match=says):
        meta_device.fill(given, model.to_empty(device="cpu"), join(Layout()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("1.fc1.bias"), "have no 1.fc1.bias and 1 more; pass init= too"),
        (lambda state: state.update({"0.weight": torch.ones(2, 2)}), r"0.weight has the shape \(2, 2\), and the model"),
    ],
)
def test_weights_of_another_model_are_refused(change, says):
    model, state = on_meta(), net().state_dict()
    change(state)
    given = source(model, init=None, weights=state)
    with pytest.raises(UsageError, match=says):
        meta_device.fill(given, model.to_empty(device="cpu"), join(Layout()))


def test_buffers_that_have_values_keep_them():
    model = on_meta()
    model[2].kept = torch.tensor([8, 9])
    given = source(model, init=None, weights=net().state_dict())
    held = model.to_empty(device="cpu")
    meta_device.fill(given, held, join(Layout()))
    assert held[2].kept.tolist() == [8, 9]


def test_one_part_at_a_time_has_values_in_host_memory():
    model, sizes = on_meta(), []

    def noted(module):
        sizes.append(sum(value.numel() for value in given.whole.parameters() if not value.is_meta))
        draw(module)

    given = source(model, init=noted)
    meta_device.fill(given, model.to_empty(device="cpu"), join(Layout()))
    assert max(sizes) == sum(value.numel() for value in net()[1].parameters())
    assert all(value.is_meta for value in given.whole.parameters())
