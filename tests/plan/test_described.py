from __future__ import annotations

import json

import pytest

from paceline.core.errors import UsageError
from paceline.plan.configs import from_config
from paceline.plan.described import amount, machines, model_of, network_bytes_per_s

QWEN = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


@pytest.mark.parametrize(("config", "millions"), [(QWEN, 30530), (GPT2, 124)])
def test_a_config_gives_the_published_size(tmp_path, config, millions):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert from_config(path).params / 1e6 == pytest.approx(millions, rel=0.01)
    assert model_of(str(path), {"seq": 512}).seq == 512


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", '{"hidden_size": "wide"}', '{"hidden_size": 8}'])
def test_another_json_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        from_config(path)


def test_numbers_change_what_a_name_gives():
    assert model_of("llama-3-8b", {"layers": 16, "vocab": None}).layers == 16
    with pytest.raises(UsageError, match="--params 8b"):
        model_of("my-model", {})


@pytest.mark.parametrize(("text", "value"), [("8b", 8e9), ("70.6B", 70.6e9), ("1t", 1e12), ("350m", 350e6), ("12", 12)])
def test_amounts(text, value):
    assert amount(text) == value


@pytest.mark.parametrize("text", ["", "b", "-8b", "0", "1.2.3m", "8 billion"])
def test_no_amounts(text):
    with pytest.raises(UsageError):
        amount(text)


def test_machines_are_cards_or_instances():
    cards = machines("64xH100", 8, "400gbps")
    assert (cards.cluster.gpu.name, cards.cluster.nodes, cards.cluster.network_bytes_per_s) == ("H100-SXM", 8, 50e9)
    assert cards.usd_per_hour is None
    rented = machines("2xp5.48xlarge", None, None)
    assert (rented.cluster.gpu.name, rented.cluster.count) == ("H100-SXM", 16)
    assert rented.usd_per_hour == 2 * rented.instance.on_demand_usd_h


@pytest.mark.parametrize("text", ["8xVoodoo", "0xH100-SXM", "8xg6f.large"])
def test_other_machines_are_refused(text):
    with pytest.raises(UsageError):
        machines(text, 8, None)


@pytest.mark.parametrize("text", ["400", "fast", "0gbps"])
def test_other_speeds_are_refused(text):
    with pytest.raises(UsageError):
        network_bytes_per_s(text)
