"""Which numbers does a published model have? Looked up by its name, or worked out from the numbers that are given.

data/models.csv lists architectures as their configuration files give them. Cross and relative attention are written as
`attention_weights`, the mean over the blocks of an encoder and a decoder; an adaptive softmax as `head_share`.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib import resources
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.model import Transformer

_FLAGS = ("gated", "tied", "causal")
_USUAL_ASPECT = 128  # hidden / layers of GPT-like models, from 0.1 to 1,000 billion weights
_VOCABULARY = {"gpt": 51200, "bert": 30528, "llama": 32000, "llama-gqa": 128256}


def named(name: str) -> Transformer | None:
    """Return the published model that a name means; None when it is not certain.

    ``LLAMA3_70B``, ``Llama-3.1-70B`` and ``DeepSeekV3 (w/o MTP)`` are all understood.
    """
    plain = re.sub(r"\(.*?\)", "", name).strip().lower()
    plain = re.sub(r"[ _/]+", "-", plain).removeprefix("meta-").replace("llama--", "llama-")
    for pattern, model in _table():
        if re.match(rf"(.*-)?{pattern}(?![0-9.])", plain):
            return model
    return None


def from_numbers(
    name: str,
    *,
    arch: str = "gpt",
    params: float | None = None,
    seq: int,
    given: dict[str, int] | None = None,
) -> Transformer:
    """Work out a decoder from the numbers that are given; the usual proportions fill what is not.

    Args:
        name: How it is called in messages.
        arch: ``gpt`` (plain feed-forward of 4h, tied), ``llama`` (gated, untied) or ``llama-gqa`` (8 key-value heads).
        params: Weights in all; fills the depth and width, or the feed-forward of a gated model.
        seq: Tokens of a sample.
        given: Fields of `Transformer` that are known.

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
        head_share=0.16 if arch == "bert" else 1.0,
    )


def _by_aspect(name: str, params: float | None, known: dict[str, int]) -> dict[str, int]:
    """Depth and width of 12·l·h² = params with the usual h / l, in multiples of 128."""
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
