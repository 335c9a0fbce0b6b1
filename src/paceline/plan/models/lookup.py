"""Finds the model that a user names: a published name, numbers, a ``config.json`` or a ``module:factory``.

``data/models.csv`` lists published architectures as their configuration files give them. For cross and relative
attention, `attention_weights` is the mean over the blocks of encoder and decoder. For an adaptive softmax, `head_share`
is below 1.

Missing numbers follow from the usual proportions. If weights, depth and width are all given, the feed-forward width
follows: f = rest / (L·m·h) with m matrices. Numbers that contradict each other are refused.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.models.architecture import (
    DESCRIBE_BY_NUMBERS,
    MASKED_SHARE,
    USUAL_SEQ,
    USUAL_TOP_K,
    ConvNet,
    Model,
    Transformer,
)
from paceline.plan.models.convnets import convnet
from paceline.plan.models.huggingface_config import transformer_from_config

_FLAGS = ("gated", "tied", "causal")
_USUAL_ASPECT = 128  # hidden / layers of GPT-like models, from 0.1 to 1,000 billion weights
_VOCABULARY = {"gpt": 51200, "bert": 30528, "llama": 32000, "llama-gqa": 128256}


def published_transformer(name: str) -> Transformer | None:
    """Return the published model with this name; None if the name is unknown or ambiguous.

    ``LLAMA3_70B``, ``Llama-3.1-70B`` and ``DeepSeekV3 (w/o MTP)`` are all understood.
    """
    plain = re.sub(r"\(.*?\)", "", name).strip().lower()
    plain = re.sub(r"[ _/]+", "-", plain).removeprefix("meta-").replace("llama--", "llama-")
    for pattern, model in _table():
        if re.match(rf"(.*-)?{pattern}(?![0-9.])", plain):
            return model
    return None


def transformer_from_numbers(
    name: str,
    *,
    arch: str = "gpt",
    params: float | None = None,
    seq: int,
    given: dict[str, int] | None = None,
) -> Transformer:
    """Return a decoder with the given numbers; the other numbers follow from the usual proportions.

    Args:
        name: Name for messages.
        arch: ``gpt`` (plain feed-forward of 4h, tied), ``llama`` (gated, untied) or ``llama-gqa`` (8 key-value heads).
        params: Number of weights; determines depth and width, or the feed-forward of a gated model.
        seq: Tokens per sample.
        given: Known fields of `Transformer`.

    Raises:
        UsageError: Neither the size nor the width is given.
    """
    known = {key: value for key, value in (given or {}).items() if value}
    gated = arch.startswith("llama")
    if "layers" not in known or "hidden" not in known:
        known = _by_aspect(name, params, known)
    hidden, layers = known["hidden"], known["layers"]
    heads = known.get("heads") or max(1, hidden // 128)
    kv_heads = known.get("kv_heads") or (8 if arch == "llama-gqa" and heads % 8 == 0 else heads)
    vocab = known.get("vocab") or _VOCABULARY.get(arch, 51200)
    ffn = known.get("ffn") or (_gated_ffn(params, layers, hidden, kv_heads / heads, vocab) if gated else 4 * hidden)
    return Transformer(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=known.get("head_dim") or hidden // heads,
        ffn=ffn,
        vocab=vocab,
        seq=seq,
        gated=gated,
        tied=not gated,
        causal=arch != "bert",
        head_share=MASKED_SHARE if arch == "bert" else 1.0,
    )


def _by_aspect(name: str, params: float | None, known: dict[str, int]) -> dict[str, int]:
    """Return `known` with depth and width that solve 12·l·h² = params, by the usual ratio h / l if both are unknown."""
    if params is None:
        raise UsageError(
            f"neither the layers and width nor the number of weights of {name} are given; give --layers --hidden"
        )
    hidden = known.get("hidden")
    if hidden is None:
        layers = known.get("layers")
        exact = (params / 12 / layers) ** 0.5 if layers else (params * _USUAL_ASPECT / 12) ** (1 / 3)
        unit = 1024 if exact > 4096 else 128
        hidden = max(unit, round(exact / unit) * unit)
    return {**known, "hidden": hidden, "layers": known.get("layers") or 4 * max(1, round(params / 48 / hidden**2))}


def _gated_ffn(params: float | None, layers: int, hidden: int, kv_share: float, vocab: int) -> int:
    usual = round(8 * hidden / 3 / 256 + 0.499) * 256
    if params is None:
        return usual
    rest = (params - 2 * vocab * hidden) / layers - 2 * hidden**2 * (1 + kv_share)
    solved = round(rest / 3 / hidden / 64) * 64
    return solved if 2 * hidden <= solved <= 5 * hidden else usual


@cache
def _table() -> tuple[tuple[str, Transformer], ...]:
    text = resources.files("paceline.plan").joinpath("data", "models.csv").read_text(encoding="utf-8")
    return tuple((row.pop("match"), _row(row)) for row in csv.DictReader(text.splitlines()))


def _row(row: dict[str, str]) -> Transformer:
    name, share, span = row.pop("name"), float(row.pop("head_share")), float(row.pop("span"))
    numbers = {key: int(value) for key, value in row.items() if value}
    flags = {key: bool(numbers.pop(key)) for key in _FLAGS}
    fields: dict[str, Any] = {**numbers, **flags}
    return Transformer(name=name, head_share=share, span=span, **fields)


_APART = 0.1  # largest relative difference between the computed and the given number of weights
_NARROWEST, _WIDEST = 0.5, 8.0  # feed-forward over width


def transformer_from_options(given: Mapping[str, Any], params: float | None, seq: int) -> Transformer:
    """Return the decoder that command-line numbers describe.

    Args:
        given: Fields of `Transformer` that the user gave.
        params: Number of weights.
        seq: Tokens per sample.

    Raises:
        UsageError: Too few numbers are given, or they contradict each other.
    """
    dense = {name: value for name, value in given.items() if name not in ("experts", "top_k", "expert_ffn", "gated")}
    arch = "llama-gqa" if given.get("kv_heads") else "llama" if given.get("gated") else "gpt"
    both = "layers" in given and "hidden" in given
    base = transformer_from_numbers("the model", arch=arch, params=None if both else params, seq=seq, given=dense)
    found = check_heads(_with_experts(base, given))
    return _of_size(found, given, params) if params and both else found


def check_heads(model: Transformer) -> Transformer:
    """Return the model if its key/value heads divide its attention heads and its experts are consistent.

    Raises:
        UsageError: The key/value heads do not divide the heads, or a token uses more experts than there are.
    """
    if model.heads % model.kv_heads:
        raise UsageError(
            f"{model.kv_heads} key/value heads do not divide the {model.heads} attention heads of {model.name} "
            f"evenly; change --kv-heads or --heads"
        )
    if model.experts and not 1 <= model.top_k <= model.experts:
        raise UsageError(f"a token cannot use {model.top_k} of {model.experts} experts; change --top-k or --experts")
    return model


def _with_experts(base: Transformer, given: Mapping[str, Any]) -> Transformer:
    if "heads" in given and base.hidden % base.heads:
        raise UsageError(
            f"the hidden size {base.hidden} is not a multiple of the number of heads, {base.heads}; change --heads "
            f"or --hidden"
        )
    experts = given.get("experts")
    if experts is None:
        beside = [name for name in ("top_k", "expert_ffn") if name in given]
        if beside:
            raise UsageError(f"--{beside[0].replace('_', '-')} needs --experts")
        return base
    top_k = given.get("top_k", min(USUAL_TOP_K, experts))
    return replace(base, experts=experts, top_k=top_k, expert_ffn=given.get("expert_ffn", base.ffn))


def _shortly(weights: float) -> str:
    return f"{weights / 1e9:.3g} billion" if weights >= 1e9 else f"{weights / 1e6:.3g} million"


def _of_size(found: Transformer, given: Mapping[str, Any], params: float) -> Transformer:
    """Return the model with the feed-forward (or expert) width for which it has the requested number of weights."""

    def wide(width: int) -> Transformer:
        return replace(found, expert_ffn=width) if found.experts else replace(found, ffn=width)

    if ("expert_ffn" if found.experts else "ffn") not in given:
        width = round((params - wide(0).params) / max(1, wide(1).params - wide(0).params))
        if width >= 1 and (found.experts or _NARROWEST <= width / found.hidden <= _WIDEST):
            found = wide(width)
    if abs(found.params / params - 1) > _APART:
        raise UsageError(
            f"{found.layers} blocks of width {found.hidden} have {_shortly(found.params)} weights in total, not "
            f"{_shortly(params)}; leave out --params or one of --layers and --hidden, or give --ffn and --vocab"
        )
    return found


_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def parse_amount(text: str) -> float:
    """Return the number for a text such as ``8b``, ``70.6B``, ``300m`` or ``15t``.

    Raises:
        UsageError: The text is not a number above zero.
    """
    found = re.fullmatch(r"([\d.]+)\s*([kmbt]?)", text.strip().lower())
    try:
        value = float(found[1]) * _SCALES[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is not a number; write the number like 8b, 350m or 15t")
    return value


def model_of(subject: str | None, numbers: Mapping[str, Any], image: int | None = None) -> Model:
    """Return the model for a path, a published name or numbers; numbers override those of the named model.

    Args:
        subject: A ``config.json``, a published name such as ``llama-3-8b``, a ``module:factory``, or None.
        numbers: Fields of `Transformer`, and ``params``; None if not given.
        image: Pixels on a side of an image, for a convolutional ``module:factory``.

    Raises:
        UsageError: The subject is none of these, or too few numbers are given.
    """
    given = {name: value for name, value in numbers.items() if value is not None}
    params = given.pop("params", None)
    if subject is None:
        return transformer_from_options(given, params, given.pop("seq", USUAL_SEQ))
    if params is not None:
        raise UsageError(
            f"the number of weights of {subject} is already known; leave out --params, or leave out {subject}"
        )
    found = _model_named(subject, given, image)
    return check_heads(replace(found, **given)) if isinstance(found, Transformer) else found


def _model_named(subject: str, given: dict[str, Any], image: int | None) -> Model:
    if ":" in subject:
        from paceline.plan.models.factory import model_from_factory

        return model_from_factory(subject, given.pop("seq", USUAL_SEQ), image)
    if subject.endswith(".json"):
        return transformer_from_config(Path(subject))
    return published_transformer(subject) or _convnet_named(subject)


def _convnet_named(name: str) -> ConvNet:
    try:
        return convnet(name)
    except UsageError:
        raise UsageError(
            f"{name!r} is neither a config.json nor a known model (such as llama-3-8b or resnet-50); "
            f"{DESCRIBE_BY_NUMBERS}"
        ) from None
