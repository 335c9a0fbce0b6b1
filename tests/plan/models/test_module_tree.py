from __future__ import annotations

import json

import pytest

from paceline.cli import main
from paceline.core.errors import UsageError
from paceline.plan.models.convnets import convnet
from paceline.plan.models.factory import model_from_factory
from paceline.plan.models.module_tree import ModulePart, image_network_of

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
# The picture, what SiLU was given and has made, and what the second convolution has; its gradients twice at the peak.
KEPT = 3 * 64 * 64 + PLACES * (32 + 32 + 32) + 2 * PLACES * 32


def test_a_factory_is_counted_as_by_hand(folder):
    pytest.importorskip("torch")
    found = model_from_factory("model.py:Net", 0, 64)
    assert (found.flops, found.narrow_flops) == (FLOPS, 2.0 * PLACES * 32 * 9)
    assert (found.outputs, found.layers, found.gated) == (OUTPUTS, 4, True)
    assert (found.kept, found.kept_bytes) == (KEPT, 0)
    assert found.params == 3 * 32 * 9 + 32 + 32 * 9 + 32 + 32 * 64 + 64 + 64 * 10 + 10
    with pytest.raises(UsageError, match="--image 224"):
        model_from_factory("model.py:Net", 2048)
    (folder / "flat.py").write_text("from torch import nn\nmake = lambda: nn.Linear(8, 8)\n", encoding="utf-8")
    with pytest.raises(UsageError, match="does not accept an image"):
        model_from_factory("flat.py:make", 2048, 64)


@pytest.mark.parametrize("values", [(), ("--values",)])
def test_a_program_is_caught_with_the_sizes_of_its_maps(folder, capsys, values):
    pytest.importorskip("torch")
    assert planned("--gpus", "8xA100-80GB-SXM", "--json", "plan.json", "train.py", *values) == 0
    assert "batch [16, 3, 64, 64]" in capsys.readouterr().out
    written = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert (written["model"]["flops"], written["model"]["outputs"]) == (FLOPS, OUTPUTS)
    assert written["model"]["kept"] == pytest.approx(KEPT, rel=1e-3)
    assert (written["global_batch"], written["best"]["layout"], written["best"]["precision"]) == (128, "dp=8", "bf16")
    assert written["best"]["tokens_per_s"] is None
    assert written["best"]["samples_per_s"] == pytest.approx(128 / written["best"]["step_s"])
    assert sum(written["best"]["step_parts_s"].values()) == pytest.approx(written["best"]["step_s"])
    assert sum(written["best"]["memory_parts_bytes"].values()) == pytest.approx(written["best"]["memory_bytes"])


def test_what_mostly_does_not_convolve_is_refused():
    linear = {"kind": "linear", "weights": 1000, "groups": 1, "channels": 10, "outputs": 100}
    convolution = {"kind": "convolution", "weights": 10, "groups": 1, "channels": 10, "outputs": 100}
    module = ModulePart(kind="vit", embedding=False, heads=None, weights=(), children=())
    with pytest.raises(UsageError, match="mostly convolutions"):
        image_network_of(module, "ViT", [linear, convolution], {"elements": 1, "other_bytes": 0}, 10)


BOTTLENECK = """
from torch import nn

class Bottleneck(nn.Module):
    def __init__(self, inputs, middle, stride):
        super().__init__()
        def with_norm(i, o, k, s):
            return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o))
        self.relu, outputs = nn.ReLU(inplace=True), 4 * middle
        self.first, self.second = with_norm(inputs, middle, 1, 1), with_norm(middle, middle, 3, stride)
        self.third = with_norm(middle, outputs, 1, 1)
        self.beside = with_norm(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x):
        made = self.third(self.relu(self.second(self.relu(self.first(x)))))
        return self.relu(made + self.beside(x))

class ResNet50(nn.Sequential):
    def __init__(self):
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        blocks, inputs = [nn.MaxPool2d(3, 2, 1)], 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            for block in range(depth):
                blocks.append(Bottleneck(inputs, 64 * 2**stage, 2 if stage and not block else 1))
                inputs = 256 * 2**stage
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
"""


def test_what_a_published_network_keeps_is_what_autograd_keeps(folder):
    pytest.importorskip("torch")
    (folder / "resnet.py").write_text(BOTTLENECK, encoding="utf-8")
    counted, published = model_from_factory("resnet.py:ResNet50", 0, 224), convnet("resnet-50")
    assert published.kept == pytest.approx(counted.kept, rel=0.03)
    assert published.params == pytest.approx(counted.params, rel=0.01)
    assert counted.kept_bytes == 8 * 64 * 56 * 56  # indices of the pooling


VISION = """
import torch
from torch import nn

class Vision(nn.Module):
    def __init__(self, hidden=384, depth=6):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, hidden, 16, 16), nn.Linear(hidden, 10)
        self.positions = nn.Parameter(torch.zeros(1, 196, hidden))
        made = (nn.TransformerEncoderLayer(hidden, 6, 4 * hidden, batch_first=True) for _ in range(depth))
        self.blocks = nn.ModuleList(made)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))
"""


def test_a_vision_transformer_is_its_patches(folder):
    pytest.importorskip("torch")
    (folder / "vision.py").write_text(VISION, encoding="utf-8")
    found = model_from_factory("vision.py:Vision", 0, 224)
    assert (found.layers, found.hidden, found.heads, found.ffn, found.seq) == (6, 384, 6, 1536, 196)
    assert (found.vocab, found.causal) == (10, False)
    assert found.params == pytest.approx(6 * (12 * 384**2 + 13 * 384) + 384 * (768 + 197 + 10), rel=0.01)
