"""Configurations of published models give their published sizes; files that are refused say why."""

from __future__ import annotations

import json

import pytest

from paceline.core.errors import UsageError
from paceline.plan.models.huggingface_config import transformer_from_config
from paceline.plan.models.lookup import model_of

DECODER = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000}
PUBLISHED = {
    "ViT-B/16": (86.4e6, "vit 768 12 12 intermediate_size=3072 image_size=224 patch_size=16"),
    "Gemma-2B": (
        2.51e9,
        "gemma 2048 18 8 intermediate_size=16384 num_key_value_heads=1 head_dim=256 vocab_size=256000",
    ),
    "Falcon-7B": (6.92e9, "falcon 4544 32 71 vocab_size=65024 multi_query=1"),
    "Phi-2": (2.78e9, "phi 2560 32 32 intermediate_size=10240 vocab_size=51200"),
    "Qwen2-57B-A14B": (
        57.4e9,
        "qwen2_moe 3584 28 28 intermediate_size=18944 moe_intermediate_size=2560 num_experts=64 num_experts_per_tok=8 "
        "shared_expert_intermediate_size=20480 num_key_value_heads=4 vocab_size=151936",
    ),
    "DeepSeek-V3": (
        671e9,
        "deepseek_v3 7168 61 128 intermediate_size=18432 moe_intermediate_size=2048 n_routed_experts=256 "
        "num_experts_per_tok=8 n_shared_experts=1 first_k_dense_replace=3 q_lora_rank=1536 kv_lora_rank=512 "
        "qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 vocab_size=129280",
    ),
}
T5_LARGE = {"model_type": "t5", "d_model": 1024, "d_ff": 4096, "d_kv": 64, "num_heads": 16, "num_layers": 24}
BART_LARGE = {"model_type": "bart", "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "vocab_size": 50265}


def written(path, config):
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def of_words(words):
    kind, hidden, layers, heads, *others = words.split()
    config = {"model_type": kind, "hidden_size": int(hidden), "num_hidden_layers": int(layers)}
    return config | {"num_attention_heads": int(heads)} | {name: int(value) for name, value in map(split, others)}


def split(word):
    name, _, value = word.partition("=")
    return name, value


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_gives_the_published_size(tmp_path, name):
    weights, words = PUBLISHED[name]
    assert transformer_from_config(written(tmp_path / "config.json", of_words(words))).params == pytest.approx(
        weights, rel=0.01
    )


def test_an_encoder_with_a_decoder_is_all_its_blocks(tmp_path):
    t5 = transformer_from_config(
        written(tmp_path / "t5.json", T5_LARGE | {"vocab_size": 32128, "is_encoder_decoder": True})
    )
    assert t5.layers == 48
    assert t5.params == pytest.approx(738e6, rel=0.01)
    heads = {"encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "max_position_embeddings": 1024}
    bart = transformer_from_config(written(tmp_path / "bart.json", BART_LARGE | heads))
    assert bart.params == pytest.approx(406e6, rel=0.01)


def test_the_text_part_of_a_model_with_pictures_is_planned_and_named_so(tmp_path):
    found = transformer_from_config(written(tmp_path / "c.json", {"model_type": "gemma3", "text_config": DECODER}))
    assert (found.layers, found.name) == (32, "gemma3 (its text part)")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": "32"}, "num_attention_heads"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"hidden_size": 4096.5}, "hidden_size"),
        ({"num_key_value_heads": 5}, "do not divide"),
        ({"model_type": "albert"}, "share their weights"),
    ],
)
def test_nonsense_is_refused_with_what_it_said(tmp_path, change, said):
    with pytest.raises(UsageError, match=said):
        transformer_from_config(written(tmp_path / "config.json", DECODER | change))


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
def test_a_config_with_few_fields_gives_the_published_size(tmp_path, config, millions):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert transformer_from_config(path).params / 1e6 == pytest.approx(millions, rel=0.01)
    assert model_of(str(path), {"seq": 512}).seq == 512


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", '{"hidden_size": "wide"}', '{"hidden_size": 8}'])
def test_another_json_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        transformer_from_config(path)
