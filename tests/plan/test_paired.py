from __future__ import annotations

import json

import pytest

from paceline.cli import main

pytest.importorskip("torch")

MODEL = """
import sys, torch
from torch import nn

def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)

class Beside(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": linear(base.in_features, rank)})
        self.lora_B = nn.ModuleDict({"default": linear(rank, base.out_features)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))

class Own(nn.Module):  # the same with other names, and the other way round
    def __init__(self, base, rank):
        super().__init__()
        self.inner, self.a = base, nn.Parameter(torch.zeros(base.in_features, rank))
        self.b = nn.Parameter(torch.zeros(rank, base.out_features))

    def forward(self, x):
        return self.inner(x) + x @ self.a @ self.b

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(128, size) for size in (128, 32, 32, 128))
        self.num_heads, self.num_kv_heads = 4, 1

    def forward(self, x):
        return self.o(self.q(x) + (self.k(x) + self.v(x)).repeat(1, 1, 4))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.norm, self.up, self.down = Attention(), nn.LayerNorm(128), linear(128, 512), linear(512, 128)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x + self.attn(x))).relu())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 128), linear(128, 1000)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

net = Net().to(torch.bfloat16).requires_grad_(False)
"""
TRAINED = """
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)  # of all, the frozen ones too
net(torch.randint(0, 1000, (4, 64))).float().mean().backward()
optimizer.step()
"""
QV = """
for block in net.blocks:
    block.attn.q, block.attn.v = Beside(block.attn.q, 8), Beside(block.attn.v, 8)
"""
ALL = """
for each in [each for block in net.blocks for each in (block.attn, block)]:
    for name, child in list(each.named_children()):
        if isinstance(child, nn.Linear):
            setattr(each, name, Own(child, 8))
"""


def planned(folder, change, *options):
    (folder / "train.py").write_text(MODEL + change + TRAINED, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--gpus", "1xH100-SXM", "--json", str(folder / "plan.json"), *options, str(folder / "train.py")])
    return ended.value.code


@pytest.mark.parametrize(
    ("change", "each", "share"),
    [
        (QV, 8 * (128 + 128 + 128 + 32), 2 * 128 / (4 * 128 + 128 + 512)),
        (ALL, 8 * (2 * (128 + 128) + 2 * (128 + 32) + 2 * (128 + 512)), 1.0),
    ],
)
def test_a_program_that_trains_low_rank_pairs_is_planned_beside_its_frozen_weights(tmp_path, change, each, share):
    assert planned(tmp_path, change) == 0
    written = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert written["states"]["adapted"] == {
        "adapters": "lora_all",
        "trainable": 3 * each,
        "frozen_bits": 16.0,
        "adapted_share": pytest.approx(share),
    }
    assert (written["model"]["layers"], written["model"]["ffn"], written["model"]["kv_heads"]) == (3, 512, 1)
    assert written["states"]["weight_bytes"] == 4.0  # of the matrices, which are made in fp32
    assert written["best"]["memory_parts_bytes"]["optimizer"] == 8 * 3 * each


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("net.blocks[2].requires_grad_(True)", "attn.q.weight is trained in a block and is not a low-rank matrix"),
        ("net.head.requires_grad_(True)", "head.weight is trained and is outside the blocks"),
        (QV + "net.blocks[0].norm.requires_grad_(True)", "norm.weight is trained in a block"),
        (QV + "net.blocks[0].attn.q.lora_B.requires_grad_(False)", "trained in a block and is not a low-rank"),
    ],
)
def test_a_program_that_trains_another_part_is_refused_with_the_reason(tmp_path, capsys, change, says):
    assert planned(tmp_path, change) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "are trained, which is supported only for low-rank pairs in blocks" in said


def test_no_recipe_is_written_of_a_program_with_adapters(tmp_path, capsys):
    assert planned(tmp_path, QV, "--recipe", str(tmp_path / "recipe.toml")) == 2
    assert "the program trains LoRA adapters, and a recipe cannot describe LoRA adapters" in capsys.readouterr().err
