from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.plan.cases import memory_of, step_of
from tests.plan.search.test_search import wish

from paceline.cli import main
from paceline.core.errors import UsageError
from paceline.plan.cost.case import parse_layout
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.flops import model_flops
from paceline.plan.models.adapters import Adapted, low_rank_adapters
from paceline.plan.models.convnets import convnet
from paceline.plan.models.lookup import published_transformer
from paceline.plan.search.search import search

LLAMA = published_transformer(
    "Llama-3-8B"
)  # width 4,096, 8 heads of keys and values of 32, feed-forward 14,336, 32 blocks


@pytest.mark.parametrize(
    ("where", "weights"),
    [
        ("qv", 32 * 16 * (4096 + 4096 + 4096 + 1024)),
        ("all-linear", 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))),
    ],
)
def test_weights_of_low_rank_matrices_are_inputs_and_outputs_times_the_rank(where, weights):
    assert low_rank_adapters(LLAMA, 16, where, 16).trainable == weights


def best(adapted, spec="1xA100-80GB-SXM", **more):
    question = wish(spec=spec, batch=16, adapted=adapted, **more)
    question = replace(question, model=replace(LLAMA, seq=2048))
    return search(question, fitted()).plans


def test_frozen_weights_have_no_gradients_and_no_states():
    plan = best(low_rank_adapters(LLAMA, 16, "qv", 16))[0]
    parts = plan.memory_parts
    assert not best(Adapted())  # all weights with their states do not fit one card
    assert parts["weights"] == pytest.approx(2 * LLAMA.params, rel=0.02)
    assert parts["optimizer"] == pytest.approx(8 * low_rank_adapters(LLAMA, 16, "qv", 16).trainable)
    assert parts["gradients"] < 0.01 * parts["weights"]
    assert plan.memory_bytes == pytest.approx(memory_of(plan.case).total[0])
    assert plan.step_s == pytest.approx(step_of(plan.case).total[0])


def test_fewer_bits_take_less_and_adapters_everywhere_keep_more():
    def held(where, bits):
        return best(low_rank_adapters(LLAMA, 16, where, bits), micro_batch=1, ways=("none",))[0].memory_parts

    assert held("qv", 4)["weights"] < 0.4 * held("qv", 16)["weights"]
    assert held("all-linear", 16)["activations"] > 1.5 * held("qv", 16)["activations"]


def test_a_step_wants_no_gradients_of_frozen_weights():
    case = best(low_rank_adapters(LLAMA, 16, "qv", 16))[0].case
    full = replace(case, training=replace(case.training, adapters="", trainable=0))
    assert 0.66 < model_flops(case) / model_flops(full) < 0.7  # attention has no weights
    assert 0.6 < step_of(case).total[0] / step_of(full).total[0] < 0.8


def test_matrices_of_a_higher_rank_are_work_too():
    low, high = (
        best(low_rank_adapters(LLAMA, rank, "all-linear", 16), micro_batch=1, ways=("none",))[0] for rank in (8, 256)
    )
    more = 248 * 32 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert model_flops(high.case) - model_flops(low.case) == pytest.approx(6 * more * 2048 * 16)
    assert 1.05 < high.step_parts["matrix"] / low.step_parts["matrix"] < 1.2


def test_frozen_experts_have_no_gradients_to_reduce():
    question = wish(spec="16xH100-SXM", batch=64, layout=parse_layout("dp=16,ep=8"), precision="bf16")
    mixtral = published_transformer("Mixtral-8x7B")
    question = replace(question, model=mixtral, adapted=low_rank_adapters(mixtral, 16, "qv", 16))
    parts = search(question, fitted()).nearest.step_parts
    assert parts["reduce"] < 0.05 * parts["matrix"]


def test_embeddings_frozen_in_32_bits_take_32():
    def held(bits):
        return best(low_rank_adapters(LLAMA, 8, "qv", bits), micro_batch=1)[0].memory_parts["weights"]

    assert held(32) == pytest.approx(2 * held(16), rel=0.01)


def test_few_bits_are_not_planned_on_axes_that_split_products():
    small = low_rank_adapters(LLAMA, 16, "qv", 4)
    for plan in best(small, "8xA100-80GB-SXM"):
        layout = plan.case.layout
        assert (layout.tp, layout.pp, layout.cp) == (1, 1, 1)
    with pytest.raises(UsageError, match="layout tp=8: frozen weights with fewer than 16 bits"):
        best(small, "8xA100-80GB-SXM", layout=parse_layout("tp=8"))


@pytest.mark.parametrize(
    ("model", "where", "says"),
    [
        (convnet("resnet-50"), "qv", "--lora needs a transformer"),
        (published_transformer("Mixtral-8x7B"), "all-linear", "adapters on the experts"),
    ],
)
def test_what_is_not_planned_is_refused(model, where, says):
    with pytest.raises(UsageError, match=says):
        low_rank_adapters(model, 8, where, 16)


def test_a_rank_above_the_narrowest_product_is_refused():
    with pytest.raises(UsageError, match="--lora 2000 is too high: a matrix of Llama-3-8B is only 1024 wide"):
        low_rank_adapters(LLAMA, 2000, "qv", 16)


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
