"""Reads the transformer that a Hugging Face ``config.json`` describes: decoder, encoder, encoder-decoder or vision.

An encoder-decoder has the blocks of both parts, and samples with equally many input and output tokens; the cross
attention of the decoder is averaged over all blocks. The tokens of a vision transformer are its patches, and its output
layer runs on only one of them. Config files omit the defaults of their class. Whether embeddings are tied is then
looked up by ``model_type``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.models.architecture import DESCRIBE_BY_NUMBERS, MASKED_SHARE, USUAL_SEQ, Transformer

_USUAL_LABELS = 1000

_ENCODERS = [
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "deberta",
    "deberta-v2",
    "mpnet",
    "ernie",
    "esm",
]
_PLAIN = [
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "codegen",
    "gpt_bigcode",
    "opt",
    "bloom",
    "phi",
    "falcon",
    "mpt",
    "starcoder2",
    "nemotron",
    "persimmon",
]
_TIED = (
    *("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "starcoder2", "gemma", "gemma2", "gemma3"),
    *("gemma3_text", "cohere", "cohere2", "smollm3", "modernbert", "t5", "mt5", "bart", "mbart", "pegasus", "marian"),
)
_LEARNED_POSITIONS = ("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bart", "mbart")
_OTHERS = {
    "albert": "its blocks share their weights",
    "clip": "it has two models",
    "dbrx": "its experts are in a part of the model that Paceline does not read",
    "siglip": "it has two models",
    "whisper": "its samples are audio",
    "wav2vec2": "its samples are audio",
    "jamba": "most of its blocks have no attention",
}
_TEXT_PARTS = ("text_config", "llm_config", "language_config")


def transformer_from_config(path: Path) -> Transformer:
    """Return the transformer that a ``config.json`` describes.

    Raises:
        UsageError: The file cannot be read, or does not describe a supported transformer.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not the config.json of a transformer ({error})") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not the config.json of a transformer: it contains a {type(config).__name__}")
    return _transformer(_ConfigFile(path, *_text_part(config)))


def _text_part(config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the part of a config that describes the text model, and a name of the model for messages."""
    kind = str(config.get("model_type", ""))
    parts = [config[name] for name in _TEXT_PARTS if isinstance(config.get(name), dict)]
    if parts and kind not in _OTHERS and not config.get("hidden_size"):
        return {"model_type": kind, **parts[0]}, f"{kind} (its text part)"
    return config, str(config.get("_name_or_path") or kind)


@dataclass(frozen=True)
class _ConfigFile:
    """A config file. The same value has different names in the files of different model classes."""

    path: Path
    config: Mapping[str, Any]
    name: str

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type", ""))

    def has(self, *names: str) -> bool:
        return any(self.config.get(name) is not None for name in names)

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number from the config file.

        Args:
            names: Possible names of the value; the first one that the file has is used.
            default: The result if the file has none of the names.
            least: The smallest allowed value.

        Raises:
            UsageError: The value is missing and has no default, or is not a whole number of at least `least`.
        """
        name = next((each for each in names if self.has(each)), None)
        if name is None:
            if default is None:
                raise UsageError(f"{self.path} has no {names[0]}; {DESCRIBE_BY_NUMBERS}")
            return default
        value = self.config[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{name} in {self.path} is {value!r}; it must be a whole number of {least} or more")
        return value


def _transformer(said: _ConfigFile) -> Transformer:
    if said.kind in _OTHERS:
        raise UsageError(
            f"{said.path} describes {said.kind}, which is not supported: {_OTHERS[said.kind]}; {DESCRIBE_BY_NUMBERS}"
        )
    if said.config.get("is_encoder_decoder") or said.has("decoder_layers", "num_decoder_layers") or said.kind == "t5":
        return _two_stacks(said)
    if said.has("image_size") and said.has("patch_size"):
        return _vision(said)
    return _one_stack(said)


def _one_stack(said: _ConfigFile) -> Transformer:
    hidden = said.number("hidden_size", "n_embd", "n_embed", "d_model", "dim")
    heads = said.number("num_attention_heads", "n_head", "n_heads", "num_heads")
    head_dim = said.number("head_dim", default=max(1, hidden // heads))
    encoder = said.kind in _ENCODERS or said.kind == "modernbert"
    plain = said.kind in (*_PLAIN, *_ENCODERS)
    ffn = said.number("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", default=4 * hidden)
    positions = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
    learned = said.kind in (*_LEARNED_POSITIONS, *_ENCODERS)
    return Transformer(
        name=said.name or said.path.stem,
        layers=said.number("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(said, heads),
        ffn=said.number("intermediate_size_mlp", default=ffn),
        vocab=said.number("vocab_size"),
        seq=said.number(*positions, default=USUAL_SEQ),
        positions=said.number(*positions, default=0) if learned else 0,
        gated=not plain,
        tied=_tied(said),
        causal=not encoder,
        head_share=MASKED_SHARE if encoder else 1.0,
        **_latent(said, hidden, heads, head_dim),
        **_experts(said, ffn),
    )


def _kv_heads(said: _ConfigFile, heads: int) -> int:
    grouped = said.config.get("new_decoder_architecture", False)
    if said.config.get("multi_query") and not grouped:
        return 1
    found = said.number("num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads)
    if heads % found:
        raise UsageError(
            f"{said.path} has {found} key/value heads, which do not divide its {heads} attention heads evenly"
        )
    return found


def _tied(said: _ConfigFile) -> bool:
    return bool(said.config.get("tie_word_embeddings", said.kind in (*_TIED, *_ENCODERS)))


def _latent(said: _ConfigFile, hidden: int, heads: int, head_dim: int) -> dict[str, int]:
    """Return the number of attention weights and the head width of a model with latent attention (DeepSeek)."""
    if not said.has("kv_lora_rank"):
        return {"head_dim": head_dim}
    keys = said.number("qk_nope_head_dim") + said.number("qk_rope_head_dim")
    values, narrow = said.number("v_head_dim"), said.number("kv_lora_rank")
    queries = said.number("q_lora_rank", default=0)
    asked = queries * (hidden + heads * keys) if queries else hidden * heads * keys
    rope = said.number("qk_rope_head_dim")
    kept = hidden * (narrow + rope) + narrow * heads * (keys - rope + values)
    return {"head_dim": (keys + values) // 2, "attention_weights": asked + kept + heads * values * hidden}


def _experts(said: _ConfigFile, ffn: int) -> dict[str, int]:
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = said.number(*names, default=0, least=0)
    if experts < 2:
        return {}
    width = said.number("moe_intermediate_size", "expert_ffn_hidden_size", default=ffn)
    shared = said.number("n_shared_experts", "num_shared_experts", default=0, least=0) * width
    if said.kind.startswith("llama4"):
        shared = width
    layers = said.number("num_hidden_layers", "n_layer", "n_layers")
    step = said.number("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    dense = said.number("first_k_dense_replace", default=layers - layers // step, least=0)
    return {
        "experts": experts,
        "top_k": said.number("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k"),
        "expert_ffn": width,
        "shared_ffn": said.number("shared_expert_intermediate_size", default=shared),
        "dense_layers": max(dense, len(said.config.get("mlp_only_layers") or ())),
    }


def _two_stacks(said: _ConfigFile) -> Transformer:
    hidden = said.number("d_model", "hidden_size")
    heads = said.number("num_heads", "encoder_attention_heads", "num_attention_heads")
    head_dim = said.number("d_kv", default=max(1, hidden // heads))
    encoder = said.number("encoder_layers", "num_layers", "num_hidden_layers")
    decoder = said.number("decoder_layers", "num_decoder_layers", default=encoder)
    each = 4 * hidden * heads * head_dim
    positions = said.number("n_positions", "max_position_embeddings", default=512)
    return Transformer(
        name=f"{said.name or said.path.stem} (encoder and decoder)",
        layers=encoder + decoder,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=said.number("d_ff", "encoder_ffn_dim", "intermediate_size", default=4 * hidden),
        vocab=said.number("vocab_size"),
        seq=positions,
        positions=2 * positions if said.kind in _LEARNED_POSITIONS else 0,
        gated=str(said.config.get("feed_forward_proj", "")).startswith("gated"),
        tied=_tied(said),
        causal=False,
        attention_weights=each * (encoder + 2 * decoder) // (encoder + decoder),
    )


def _vision(said: _ConfigFile) -> Transformer:
    hidden, heads = said.number("hidden_size"), said.number("num_attention_heads")
    patch, channels = said.number("patch_size"), said.number("num_channels", default=3)
    seq = (said.number("image_size") // patch) ** 2 + 1
    labels = said.config.get("id2label")
    ratio = said.config.get("mlp_ratio", 4)
    return Transformer(
        name=said.name or said.path.stem,
        layers=said.number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        ffn=said.number("intermediate_size", default=int(ratio * hidden) if isinstance(ratio, int | float) else 0),
        vocab=len(labels) if isinstance(labels, dict) and labels else _USUAL_LABELS,
        seq=seq,
        positions=seq + channels * patch**2,  # plus the layer that embeds patches
        gated=bool(said.config.get("use_swiglu_ffn", False)),
        tied=True,
        causal=False,
        head_share=1.0 / seq,
    )
