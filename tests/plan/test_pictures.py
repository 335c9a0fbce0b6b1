from __future__ import annotations

import json

import pytest

from paceline.cli import main
from paceline.errors import UsageError
from paceline.plan.anatomy import Part
from paceline.plan.capture import from_factory
from paceline.plan.constants import fitted
from paceline.plan.convnets import convnet
from paceline.plan.described import machines
from paceline.plan.fits import SURE
from paceline.plan.pictures import convnet_of
from paceline.plan.search import Wish, largest_batch, search
from paceline.plan.setting import parse_layout

MODEL = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Conv2d(32, 64, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )
"""
PROGRAM = """
import sys
import torch
from model import Net

net = Net()
if "--values" in sys.argv:
    assert abs(net[0].weight.detach().numpy().sum()) >= 0
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.randn(16, 3, 64, 64)).float().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *args])
    return ended.value.code


# Of one 64 x 64 picture, by hand: 32 x 32 places after the stride.
PLACES = 32 * 32
FLOPS = 2.0 * (PLACES * (3 * 32 * 9 + 32 * 9 + 32 * 64) + 64 * 10)
OUTPUTS = PLACES * (32 + 32 + 64) + 10


def test_a_factory_is_counted_as_by_hand(folder):
    pytest.importorskip("torch")
    found = from_factory("model.py:Net", 0, 64)
    assert (found.flops, found.narrow_flops) == (FLOPS, 2.0 * PLACES * 32 * 9)
    assert (found.outputs, found.layers, found.gated) == (OUTPUTS, 4, True)
    assert found.params == 3 * 32 * 9 + 32 + 32 * 9 + 32 + 32 * 64 + 64 + 64 * 10 + 10
    with pytest.raises(UsageError, match="--image 224"):
        from_factory("model.py:Net", 2048)
    (folder / "flat.py").write_text("from torch import nn\nmake = lambda: nn.Linear(8, 8)\n", encoding="utf-8")
    with pytest.raises(UsageError, match="takes no picture"):
        from_factory("flat.py:make", 2048, 64)


@pytest.mark.parametrize("values", [(), ("--values",)])
def test_a_program_is_caught_with_the_sizes_of_its_maps(folder, capsys, values):
    pytest.importorskip("torch")
    assert planned("--gpus", "8xA100-80GB-SXM", "--json", "plan.json", "train.py", *values) == 0
    assert "batch [16, 3, 64, 64]" in capsys.readouterr().out
    written = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert (written["model"]["flops"], written["model"]["outputs"]) == (FLOPS, OUTPUTS)
    assert (written["global_batch"], written["best"]["layout"], written["best"]["precision"]) == (128, "dp=8", "bf16")
    assert written["best"]["tokens_per_s"] is None
    assert written["best"]["samples_per_s"] == pytest.approx(128 / written["best"]["step_s"])
    assert sum(written["best"]["step_parts_s"].values()) == pytest.approx(written["best"]["step_s"])
    assert sum(written["best"]["memory_parts_bytes"].values()) == pytest.approx(written["best"]["memory_bytes"])


def test_what_mostly_does_not_convolve_is_refused():
    linear = {"kind": "linear", "weights": 1000, "groups": 1, "channels": 10, "outputs": 100}
    convolution = {"kind": "convolution", "weights": 10, "groups": 1, "channels": 10, "outputs": 100}
    module = Part(kind="vit", embedding=False, heads=None, weights=(), children=())
    with pytest.raises(UsageError, match="mostly convolve"):
        convnet_of(module, "ViT", [linear, convolution], 10)


def wish(batch=2048, **more):
    return Wish(
        model=convnet("resnet-50"), cluster=machines("8xA100-80GB-SXM", 8, None).cluster, global_batch=batch, **more
    )


def test_plans_of_a_network_divide_the_batch_and_surely_fit():
    found = search(wish(), fitted())
    assert [plan.memory_bytes for plan in found.plans] == sorted((p.memory_bytes for p in found.plans), reverse=True)
    for plan in found.plans:
        assert plan.case.global_batch == 2048
        assert plan.fits >= SURE
    largest = largest_batch(found.plans[0], fitted())
    assert search(wish(8 * largest, micro_batch=largest), fitted()).plans
    assert not search(wish(16 * largest, micro_batch=2 * largest), fitted()).plans


@pytest.mark.parametrize(
    ("change", "message"),
    [({"layout": parse_layout("tp=8")}, "a replica on each GPU"), ({"batch": 2047}, "--batch 2040")],
)
def test_what_cannot_be_replicated_is_said(change, message):
    with pytest.raises(UsageError, match=message):
        search(wish(**change), fitted())
