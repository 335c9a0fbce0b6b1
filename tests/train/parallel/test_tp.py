"""Is it known what of a model can be split, and refused what is not?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from paceline.core.errors import UsageError
from paceline.train.parallel.tp import check_heads, plan_of


def part(**children):
    made = nn.Module()
    for name, child in children.items():
        made.add_module(name, child)
    return made


def linear():
    return nn.Linear(8, 8)


def test_usual_names_are_split_in_the_order_of_the_model():
    block = part(
        attention=part(q_proj=linear(), k_proj=linear(), v_proj=linear(), o_proj=linear(), drop=nn.Dropout()),
        mlp=part(gate_proj=linear(), up_proj=linear(), act=nn.SiLU(), down_proj=linear()),
        norm=nn.LayerNorm(8),
    )
    plan = plan_of(nn.Sequential(block))
    assert list(plan.items()) == [
        ("0.attention.q_proj", "colwise"),
        ("0.attention.k_proj", "colwise"),
        ("0.attention.v_proj", "colwise"),
        ("0.attention.o_proj", "rowwise"),
        ("0.mlp.gate_proj", "colwise"),
        ("0.mlp.up_proj", "colwise"),
        ("0.mlp.down_proj", "rowwise"),
    ]


def attention():
    return part(q_proj=linear(), k_proj=linear(), v_proj=linear(), o_proj=linear())


@pytest.mark.parametrize(
    "beside",
    [{"norm": nn.LayerNorm(8)}, {"norm": nn.RMSNorm(8), "drop": nn.Dropout()}, {"attention": attention()}],
    ids=["a norm", "a norm and dropout", "attention"],
)
def test_layers_beside_the_matrices_that_take_other_sizes_do_not_matter(beside):
    block = part(**beside, fc1=nn.Linear(8, 32), fc2=nn.Linear(32, 8))
    plan = plan_of(block)
    assert (plan["fc1"], plan["fc2"]) == ("colwise", "rowwise")


def test_a_model_may_carry_its_plan():
    model = part(layers=nn.ModuleList(part(a=linear(), b=linear()) for _ in range(2)))
    model._tp_plan = {"layers.*.a": "colwise", "layers.*.b": "rowwise"}
    assert plan_of(model) == {
        "layers.0.a": "colwise",
        "layers.1.a": "colwise",
        "layers.0.b": "rowwise",
        "layers.1.b": "rowwise",
    }


def with_plan(**plan):
    model = part(a=linear())
    model.tp_plan = plan
    return model


def tied():
    model = with_plan(a="colwise", b="rowwise")
    model.b = linear()
    model.b.weight = model.a.weight
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.TransformerEncoderLayer(8, 2), "nothing that tp can split"),
        (part(up_proj=linear(), norm=nn.LayerNorm(8), down_proj=linear()), "nothing that tp can split"),
        (part(fc1=nn.Linear(8, 32), norm=nn.LayerNorm(32), fc2=nn.Linear(32, 8)), "nothing that tp can split"),
        (part(fc1=nn.Linear(8, 32), mix=nn.Softmax(-1), fc2=nn.Linear(32, 8)), "nothing that tp can split"),
        (part(fc1=nn.Linear(8, 32), conv=nn.Conv1d(32, 32, 3), fc2=nn.Linear(32, 8)), "nothing that tp can split"),
        (part(fc1=nn.Bilinear(8, 8, 8), fc2=linear()), "nothing that tp can split"),
        (with_plan(a="moe_tp_experts"), "'moe_tp_experts'; colwise, rowwise, .* are known here"),
        (tied(), "a and b share a parameter"),
        (with_plan(c="colwise"), "'c', but no module has this name"),
    ],
    ids=[
        "packed",
        "a norm of all units",
        "a norm between",
        "softmax",
        "convolution",
        "not linear",
        "unknown style",
        "shared",
        "unknown name",
    ],
)
def test_the_rest_is_refused(model, says):
    with pytest.raises(UsageError, match=says):
        plan_of(model)


@pytest.mark.parametrize("name", ["num_attention_heads", "num_key_value_heads"])
def test_heads_that_cannot_be_dealt_are_named(name):
    """A model of Hugging Face would fail in its first forward, with a shape that names nothing."""
    model = nn.Module()
    model.config = SimpleNamespace(**{"num_attention_heads": 4, "num_key_value_heads": 4, name: 1})
    with pytest.raises(UsageError, match=f"{name}=1, which is not a multiple of 2"):
        check_heads(model, 2)
    check_heads(nn.Linear(2, 2), 2)
    check_heads(model, 1)
