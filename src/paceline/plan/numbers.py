"""Which transformer do the numbers of a command line mean? The usual proportions fill what is not given.

Where weights, depth and width are all given, the feed-forward is as wide as makes them agree: f = rest / (L·m·h) with m
matrices. What cannot agree is refused, and so are heads that do not divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.model import Transformer
from paceline.plan.named import from_numbers

_APART = 0.1  # share by which the weights may differ from what was said
_NARROWEST, _WIDEST = 0.5, 8.0  # feed-forward over width
_USUAL_TOP_K = 2


def transformer_from(given: Mapping[str, Any], params: float | None, seq: int) -> Transformer:
    """Return the decoder that numbers mean.

    Args:
        given: Fields of `Transformer`; only what was given.
        params: Weights in all.
        seq: Tokens of a sample.

    Raises:
        UsageError: Too little is given, or numbers that do not agree.
    """
    dense = {name: value for name, value in given.items() if name not in ("experts", "top_k", "expert_ffn", "gated")}
    arch = "llama-gqa" if given.get("kv_heads") else "llama" if given.get("gated") else "gpt"
    both = "layers" in given and "hidden" in given
    base = from_numbers("the model", arch=arch, params=None if both else params, seq=seq, given=dense)
    found = checked(_with_experts(base, given))
    return _of_size(found, given, params) if params and both else found


def checked(model: Transformer) -> Transformer:
    """Return a model whose heads divide.

    Raises:
        UsageError: They do not.
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
    top_k = given.get("top_k", min(_USUAL_TOP_K, experts))
    return replace(base, experts=experts, top_k=top_k, expert_ffn=given.get("expert_ffn", base.ffn))


def _shortly(weights: float) -> str:
    return f"{weights / 1e9:.3g} billion" if weights >= 1e9 else f"{weights / 1e6:.3g} million"


def _of_size(found: Transformer, given: Mapping[str, Any], params: float) -> Transformer:
    """Widen the feed-forward, or that of the experts, until the weights are as many as was said."""

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
