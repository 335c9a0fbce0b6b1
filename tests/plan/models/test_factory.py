from __future__ import annotations

import pytest

from paceline.cli import main
from paceline.core.errors import UsageError
from paceline.plan.models.factory import model_from_factory

pytest.importorskip("torch")

MODELS = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.num_heads = heads
        self.q, self.o = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.kv = nn.Linear(hidden, 2 * hidden * kv_heads // heads)


class Block(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn, gated):
        super().__init__()
        self.attn = Attention(hidden, heads, kv_heads)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.gate = nn.Linear(hidden, ffn) if gated else None
        self.norm = nn.LayerNorm(hidden)


class Model(nn.Module):
    def __init__(self, layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, gated=True, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, kv_heads, ffn, gated) for _ in range(layers))
        self.head = nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


def small():
    return Model(layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=50257, gated=False, tied=True)


def seventy():
    return Model(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672)


def with_more():
    model = small()
    model.tower = nn.Linear(20000, 20000)
    return model


def no_transformer():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def with_pictures():
    model = Model(layers=12, hidden=768, heads=12, kv_heads=4, ffn=3072, vocab=50257, gated=False, tied=True)
    eyes = nn.TransformerEncoderLayer(64, 2, 64)
    model._modules = {"eyes": eyes, **model._modules}
    return model


def latent():
    model = small()
    for block in model.blocks:
        block.attn.qk_head_dim, block.attn.v_head_dim, block.attn.head_dim = 96, 64, 32
    return model


def failing():
    raise RuntimeError("no data")


def ending():
    raise SystemExit(0)


def number():
    return 3
"""


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS, encoding="utf-8")
    return path


def test_a_module_is_read_from_its_weights(models):
    found = model_from_factory(f"{models}:Model", 8192)
    assert (found.layers, found.hidden, found.heads, found.kv_heads, found.head_dim) == (32, 4096, 32, 8, 128)
    assert (found.ffn, found.vocab, found.gated, found.tied) == (14336, 128256, True, False)
    assert found.params == pytest.approx(8.03e9, rel=0.01)


def test_a_plain_and_tied_one_too(models):
    found = model_from_factory(f"{models}:small", 1024)
    assert (found.gated, found.tied, found.kv_heads) == (False, True, 12)
    assert found.params == pytest.approx(124e6, rel=0.02)


def test_heads_are_those_of_the_blocks_that_are_planned(models):
    found = model_from_factory(f"{models}:with_pictures", 1024)
    assert (found.heads, found.kv_heads, found.head_dim) == (12, 4, 64)
    assert model_from_factory(f"{models}:latent", 1024).head_dim == 80  # scores take 96, sums of values 64


def test_seventy_billion_weights_take_no_memory(models):
    assert model_from_factory(f"{models}:seventy", 8192).params == pytest.approx(70.6e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("with_more", "million weights"),
        ("no_transformer", "no list of identical blocks"),
        ("failing", "failed on the meta device: RuntimeError: no data"),
        ("ending", "failed on the meta device: SystemExit: 0"),
        ("number", "returned a int"),
        ("missing", "has no function"),
    ],
)
def test_what_is_no_transformer_is_said(models, name, message):
    with pytest.raises(UsageError, match=message):
        model_from_factory(f"{models}:{name}", 1024)


def test_a_module_that_is_not_there():
    with pytest.raises(UsageError, match="cannot be imported"):
        model_from_factory("no_such_module_here:make", 1024)


def test_the_command_takes_a_factory(models, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", f"{models}:Model", "--seq", "4096", "--gpus", "16xH100", "--batch", "128"])
    assert ended.value.code == 0
    assert "8.03 billion weights, 32 blocks of width 4,096, 4,096 tokens" in capsys.readouterr().out


EXPERTS = """
import torch
from torch import nn


class Expert(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(hidden, width), nn.Linear(width, hidden), nn.Linear(hidden, width)


class Stacked(nn.Module):
    def __init__(self, hidden, width, count):
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(count, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))


class Block(nn.Module):
    def __init__(self, hidden, sparse, stacked):
        super().__init__()
        self.attn, self.num_heads = nn.MultiheadAttention(hidden, 8), 8
        if sparse:
            self.router, self.top_k = nn.Linear(hidden, 16, bias=False), 4
            made = Stacked(hidden, 512, 16) if stacked else nn.ModuleList(Expert(hidden, 512) for _ in range(16))
            self.experts, self.shared_expert = made, Expert(hidden, 1024)
        else:
            self.gate_up, self.down = nn.Linear(hidden, 4096), nn.Linear(2048, hidden)


class Model(nn.Module):
    def __init__(self, stacked=False):
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList(Block(256, number > 0, stacked) for number in range(6))


def stacked():
    return Model(stacked=True)
"""


@pytest.mark.parametrize("name", ["Model", "stacked"])
def test_experts_are_read_from_lists_and_from_stacks(tmp_path, monkeypatch, name):
    (tmp_path / "experts.py").write_text(EXPERTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = model_from_factory(f"experts.py:{name}", 512)
    assert (found.experts, found.top_k, found.expert_ffn, found.shared_ffn) == (16, 4, 512, 1024)
    assert (found.layers, found.dense_layers, found.ffn, found.gated) == (6, 1, 2048, True)
