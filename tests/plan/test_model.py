from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.plan.convnets import convnet
from paceline.plan.named import from_numbers, named
from paceline.plan.setting import Layout, parse_layout


@pytest.mark.parametrize(
    ("name", "billions"),  # as their model cards give them
    [
        ("LLAMA3_70B", 70.6),
        ("Llama-3.1-8B", 8.03),
        ("LLAMA3.1_405B", 405.9),
        ("Llama-2-13B", 13.02),
        ("LLaMA-65B", 65.2),
        ("DeepSeekV3 (w/o MTP)", 671.0),
        ("Qwen3_30B_a3B", 30.5),
        ("Qwen3_235B_a22B (tokendrop)", 235.0),
        ("GPT OSS 120B", 116.8),
        ("GPT3-175B", 174.6),
        ("BERT-Large", 0.334),
        ("BART-Large", 0.406),
        ("Transformer-XL base", 0.192),
        ("phi-1.5 1.3 B", 1.42),
    ],
)
def test_published_models_have_their_published_size(name, billions):
    assert named(name).params / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize("name", ["MPT-7b", "GPT-52B", "my own model", "Llama-3-7000B", ""])
def test_other_names_are_not_guessed(name):
    assert named(name) is None


def test_active_weights_are_those_of_the_experts_a_token_reaches():
    model = named("Qwen3_30B_a3B")
    active = model.params - model.expert_params * (1 - model.top_k / model.experts)
    assert active / 1e9 == pytest.approx(3.3, rel=0.1)


def test_numbers_are_filled_in_with_the_usual_proportions():
    model = from_numbers("x", params=52e9, seq=1024)
    assert model.params == pytest.approx(52e9, rel=0.05)
    assert from_numbers("x", arch="llama", seq=2048, given={"layers": 32, "hidden": 4096}).ffn == 11008
    grouped = from_numbers(
        "x", arch="llama-gqa", params=70.6e9, seq=8192, given={"layers": 80, "hidden": 8192, "heads": 64}
    )
    assert (grouped.kv_heads, grouped.params) == (8, pytest.approx(70.6e9, rel=0.01))


def test_a_model_without_any_size_is_refused():
    with pytest.raises(UsageError, match="--layers --hidden"):
        from_numbers("x", seq=1024)


@pytest.mark.parametrize(
    ("name", "millions", "gmacs"),  # as torchvision's pages give them
    [
        ("ResNet-50 v1.5", 25.6, 4.09),
        ("ResNeXt101-32x4d", 44.2, 8.0),
        ("EfficientNet-B0", 5.3, 0.39),
        ("EfficientNet-B4", 19.3, 4.4),
    ],
)
def test_convolutional_networks_have_their_published_size(name, millions, gmacs):
    found = convnet(name)
    assert found.params / 1e6 == pytest.approx(millions, rel=0.02)
    assert found.flops / 2e9 == pytest.approx(gmacs, rel=0.03)


def test_an_unknown_network_names_the_known_ones():
    with pytest.raises(UsageError, match="the known networks are ResNet"):
        convnet("VGG-16")


def test_layouts_are_read_as_they_are_written():
    layout = parse_layout("dp=2,shard=4,tp=2,pp=2")
    assert layout == Layout(dp=2, shard=4, tp=2, pp=2)
    assert layout.ranks == 32
    assert parse_layout(str(layout)) == layout
    assert parse_layout("dp=1") == Layout()


@pytest.mark.parametrize("text", ["dp=2,dp=4", "tp=0", "tp=two", "zero=3", "tp"])
def test_a_layout_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError):
        parse_layout(text)
