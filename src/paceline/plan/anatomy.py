"""Which transformer is a module? Read from the shapes of its weights, which `observe.probe.anatomy` has noted.

The blocks are the largest list of modules of one class. In a block, matrices under a name with ``attn`` or
``attention`` are attention, the others the feed-forward: with hidden width h and attention weights A, keys and values
have A/(2h²) - 1 of the heads. What the blocks and embeddings do not explain is said, not guessed over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.experts import Experts, Width, experts_of, width_of
from paceline.plan.model import Transformer
from paceline.plan.parts import Part, Weight

_USUAL_TOP_K = 2  # where neither a module nor a config says
_UNEXPLAINED = 0.05  # share of the weights that may be neither block nor embedding
_NUMBERS = "describe the model with options, such as --params 8b --layers 32 --hidden 4096 --heads 32"


def transformer_of(module: Part, name: str, seq: int) -> Transformer:
    """Read a module.

    Raises:
        UsageError: It has no blocks with attention and a feed-forward, or they do not explain its weights.
    """
    blocks, embedding = blocks_of(module), _embedding(module)
    if blocks is None or embedding is None:
        raise UsageError(f"{name} has no list of identical blocks with attention, or no embedding; {_NUMBERS}")
    vocab, hidden = embedding.shape
    tied = not _has_output(module, embedding)
    found = Transformer(
        name=name, hidden=hidden, vocab=vocab, seq=seq, tied=tied, **block_fields(module, name, blocks, hidden)
    )
    return _explained(found, module.params)


def block_fields(module: Part, name: str, blocks: list[Part], hidden: int) -> dict[str, Any]:
    """Return the fields of a model that its blocks tell.

    Raises:
        UsageError: They have no attention and feed-forward that can be told.
    """
    attention = _matrices(blocks[0])[0]
    sparse = [each for each in (experts_of(block, hidden) for block in blocks) if each]
    width = _width([block for block in blocks if not experts_of(block, hidden)], hidden) or (sparse and sparse[0].each)
    if not attention or not width:
        raise UsageError(
            f"Paceline recognized no attention and feed-forward layers in the blocks of {name}; {_NUMBERS}"
        )
    attention_weights = sum(each.size for each in attention)
    heads = next((part.heads for part in _near(module, blocks) if part.heads), max(1, hidden // 64))
    return {
        "layers": len(blocks),
        "heads": heads,
        "kv_heads": _kv_heads(
            _said(_near(module, blocks), "kv_heads"), heads, max(0.0, attention_weights / (2 * hidden**2) - 1)
        ),
        "head_dim": _head_dim(module, blocks) or max(1, hidden // heads),
        "ffn": width.ffn,
        "gated": width.gated,
        "attention_weights": attention_weights,
        **_routed(_said(module.parts(), "top_k"), sparse, len(blocks)),
    }


def attention_width(block: Part) -> int | None:
    """Return the narrowest side of a block's attention: its width."""
    return min((min(each.shape) for each in _matrices(block)[0]), default=None)


def in_attention(name: str) -> bool:
    """Whether what is called so, with dots, is of an attention."""
    return "attn" in name or "attention" in name


def _routed(top_k: int | None, sparse: list[Experts], blocks: int) -> dict[str, Any]:
    """Return the fields of a model whose blocks have experts."""
    if not sparse:
        return {}
    first = sparse[0]
    return {
        "experts": first.count,
        "top_k": min(top_k or _USUAL_TOP_K, first.count),
        "expert_ffn": first.each.ffn,
        "shared_ffn": first.shared_ffn,
        "dense_layers": blocks - len(sparse),
    }


def _near(module: Part, blocks: list[Part]) -> Iterator[Part]:
    """Go through a block and what it lies in: a model of pictures and text says other things elsewhere."""
    yield from blocks[0].parts()
    yield from _above(module, blocks[0]) or ()


def _above(part: Part, block: Part) -> list[Part] | None:
    """Return what a block lies in; None where that is nothing of a part."""
    if part is block:
        return []
    found = next((each for _, child in part.children if (each := _above(child, block)) is not None), None)
    return None if found is None else [part, *found]


def _said(parts: Iterator[Part], name: str) -> int | None:
    """Return what the first part says that says something."""
    return next((part.said[name] for part in parts if part.said.get(name)), None)


def _head_dim(module: Part, blocks: list[Part]) -> int | None:
    """Return the width of a head: the mean of what scores and sums take, where attention is latent."""
    keys, values, both = (_said(_near(module, blocks), f"{name}_dim") for name in ("keys", "values", "head"))
    return (keys + values) // 2 if keys and values else both


def _kv_heads(said: int | None, heads: int, share: float) -> int:
    """Return heads of keys and values: as a module says, or the divisor of its heads that comes next to a share."""
    if said and heads % said == 0:
        return said
    divisors = [each for each in range(1, heads + 1) if heads % each == 0]
    return min(divisors, key=lambda each: abs(each - heads * min(1.0, share)))


def _width(dense: list[Part], hidden: int) -> Width | None:
    """Return that of the feed-forward of blocks without experts; the two matrices of a gate may be one."""
    forward = _matrices(dense[0])[1] if dense else []
    if not forward:
        return None
    sizes = [each.size for each in forward]
    if len(sizes) == 2 and max(sizes) == 2 * min(sizes):
        return width_of(sizes, hidden)
    ffn = max(max(each.shape) for each in forward)
    return Width(ffn=ffn, gated=round(sum(sizes) / hidden / ffn) >= 3)


def _explained(found: Transformer, params: int) -> Transformer:
    if not math.isclose(found.params, params, rel_tol=_UNEXPLAINED):
        raise UsageError(
            f"{found.name} has {params / 1e6:,.1f} million weights, but {found.layers} blocks of width {found.hidden} "
            f"and their embeddings account for {found.params / 1e6:,.1f} million; {_NUMBERS}"
        )
    return found


def blocks_of(module: Part) -> list[Part] | None:
    """The children of one class, under one parent, that have the most weights."""
    best, most = None, 0
    for parent in module.parts():
        children = [child for _, child in parent.children if child.params]
        for kind, count in Counter(child.kind for child in children).items():
            members = [child for child in children if child.kind == kind]
            weights = sum(member.params for member in members)
            if count > 1 and weights > most and _matrices(members[0])[0]:
                best, most = members, weights
    return best


def _matrices(block: Part) -> tuple[list[Weight], list[Weight]]:
    """Two-dimensional weights of attention and of the rest."""
    attention: list[Weight] = []
    rest: list[Weight] = []
    for name, weight in block.named_weights():
        if len(weight.shape) == 2:
            (attention if in_attention(name) else rest).append(weight)
    return attention, rest


def _embedding(module: Part) -> Weight | None:
    tables = [weight for part in module.parts() if part.embedding for weight in part.weights]
    return max(tables, key=lambda weight: weight.size, default=None)


def _has_output(module: Part, embedding: Weight) -> bool:
    """Whether a matrix of its own leads back to the vocabulary."""
    weights = (weight for _, weight in module.named_weights())
    return any(weight.shape == embedding.shape and weight.number != embedding.number for weight in weights)
