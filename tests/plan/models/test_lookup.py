from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.plan.models.lookup import model_of, parse_amount, published_transformer, transformer_from_numbers


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
    assert published_transformer(name).params / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize("name", ["MPT-7b", "GPT-52B", "my own model", "Llama-3-7000B", ""])
def test_other_names_are_not_guessed(name):
    assert published_transformer(name) is None


def test_active_weights_are_those_of_the_experts_a_token_reaches():
    model = published_transformer("Qwen3_30B_a3B")
    active = model.params - model.expert_params * (1 - model.top_k / model.experts)
    assert active / 1e9 == pytest.approx(3.3, rel=0.1)


def test_numbers_are_filled_in_with_the_usual_proportions():
    model = transformer_from_numbers("x", params=52e9, seq=1024)
    assert model.params == pytest.approx(52e9, rel=0.05)
    assert transformer_from_numbers("x", arch="llama", seq=2048, given={"layers": 32, "hidden": 4096}).ffn == 11008
    grouped = transformer_from_numbers(
        "x", arch="llama-gqa", params=70.6e9, seq=8192, given={"layers": 80, "hidden": 8192, "heads": 64}
    )
    assert (grouped.kv_heads, grouped.params) == (8, pytest.approx(70.6e9, rel=0.01))


def test_a_model_without_any_size_is_refused():
    with pytest.raises(UsageError, match="--layers --hidden"):
        transformer_from_numbers("x", seq=1024)


SIZE = {"layers": 32, "hidden": 4096, "heads": 32}


def test_weights_that_are_given_are_the_weights_of_the_model():
    assert model_of(None, SIZE | {"params": 8e9}).params == pytest.approx(8e9, rel=0.001)
    assert model_of(None, SIZE | {"params": 47e9, "experts": 8, "gated": True}).params == pytest.approx(47e9, rel=0.001)


def test_experts_are_counted():
    made = model_of(None, SIZE | {"experts": 8, "top_k": 2, "expert_ffn": 14336, "gated": True})
    assert made.params > 40e9
    assert made.top_k == 2


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"params": 800e9}, "not 800"),
        ({"params": 8e9, "ffn": 1024}, "not 8"),
        ({"heads": 31}, "number of heads, 31"),
        ({"kv_heads": 3}, "3 key/value heads"),
        ({"experts": 8, "top_k": 20}, "20 of 8"),
        ({"top_k": 2}, "--experts"),
    ],
)
def test_numbers_that_do_not_agree_are_refused(numbers, said):
    with pytest.raises(UsageError, match=said):
        model_of(None, SIZE | numbers)


def test_numbers_must_agree_with_a_name_too():
    with pytest.raises(UsageError, match="do not divide"):
        model_of("llama-3-8b", {"kv_heads": 5})
    with pytest.raises(UsageError, match="leave out --params"):
        model_of("llama-3-8b", {"params": 70e9})


def test_numbers_change_what_a_name_gives():
    assert model_of("llama-3-8b", {"layers": 16, "vocab": None}).layers == 16
    with pytest.raises(UsageError, match="--params 8b"):
        model_of("my-model", {})


@pytest.mark.parametrize(("text", "value"), [("8b", 8e9), ("70.6B", 70.6e9), ("1t", 1e12), ("350m", 350e6), ("12", 12)])
def test_amounts(text, value):
    assert parse_amount(text) == value


@pytest.mark.parametrize("text", ["", "b", "-8b", "0", "1.2.3m", "8 billion"])
def test_no_amounts(text):
    with pytest.raises(UsageError):
        parse_amount(text)
