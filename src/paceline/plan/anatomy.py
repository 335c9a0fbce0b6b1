"""Which transformer is a module? Read from the shapes of its weights, which `observe.probe.anatomy` has noted.

The blocks are the largest list of modules of one class. In a block, matrices under a name with ``attn`` or
``attention`` are attention, the others the feed-forward: with hidden width h and attention weights A, keys and values
have A/(2h²) - 1 of the heads. What the blocks and embeddings do not explain is said, not guessed over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.errors import UsageError
from paceline.plan.model import Transformer

_UNEXPLAINED = 0.05  # share of the weights that may be neither block nor embedding
_NUMBERS = "give its numbers: --params 8b --layers 32 --hidden 4096 --heads 32"


@dataclass(frozen=True)
class Weight:
    """A parameter; one that is shared has the same number wherever it is."""

    name: str
    shape: tuple[int, ...]
    number: int

    @property
    def size(self) -> int:
        """Elements of it."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A module: its own weights and what is below it."""

    kind: str
    embedding: bool
    heads: int | None
    weights: tuple[Weight, ...]
    children: tuple[tuple[str, Part], ...]

    def parts(self) -> Iterator[Part]:
        """Go through this and all that is below it."""
        yield self
        for _, child in self.children:
            yield from child.parts()

    def named_weights(self, above: str = "") -> Iterator[tuple[str, Weight]]:
        """Go through all weights with their dotted names, shared ones as often as they are used."""
        for weight in self.weights:
            yield above + weight.name, weight
        for name, child in self.children:
            yield from child.named_weights(f"{above}{name}.")

    @cached_property
    def params(self) -> int:
        """Elements of all weights, each once."""
        return sum({weight.number: weight.size for _, weight in self.named_weights()}.values())


def part_of(record: Mapping[str, Any]) -> Part:
    """Read what `observe.probe.anatomy.described` has noted."""
    return Part(
        kind=record["kind"],
        embedding=record["embedding"],
        heads=record["heads"],
        weights=tuple(Weight(name, tuple(shape), number) for name, shape, number in record["weights"]),
        children=tuple((name, part_of(child)) for name, child in record["children"]),
    )


def transformer_of(module: Part, name: str, seq: int) -> Transformer:
    """Read a module.

    Raises:
        UsageError: It has no blocks with attention and a feed-forward, or they do not explain its weights.
    """
    blocks, embedding = _blocks(module), _embedding(module)
    if blocks is None or embedding is None:
        raise UsageError(f"{name} has no list of like blocks with attention, or no embedding; {_NUMBERS}")
    vocab, hidden = embedding.shape
    attention, forward = _matrices(blocks[0])
    if not attention or not forward:
        raise UsageError(f"the blocks of {name} have no attention and feed-forward that can be told; {_NUMBERS}")
    ffn = max(max(each.shape) for each in forward)
    attention_weights = sum(each.size for each in attention)
    heads = next((part.heads for part in module.parts() if part.heads), max(1, hidden // 64))
    shared = max(0.0, attention_weights / (2 * hidden**2) - 1)
    found = Transformer(
        name=name,
        layers=len(blocks),
        hidden=hidden,
        heads=heads,
        kv_heads=max(1, round(heads * min(1.0, shared))),
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=vocab,
        seq=seq,
        gated=round(sum(each.size for each in forward) / hidden / ffn) >= 3,
        tied=not _has_output(module, embedding),
        attention_weights=attention_weights,
    )
    return _explained(found, module.params)


def _explained(found: Transformer, params: int) -> Transformer:
    if not math.isclose(found.params, params, rel_tol=_UNEXPLAINED):
        raise UsageError(
            f"{found.name} has {params / 1e6:,.1f} million weights, and {found.layers} blocks of width {found.hidden} "
            f"with their embeddings explain {found.params / 1e6:,.1f}; {_NUMBERS}"
        )
    return found


def _blocks(module: Part) -> list[Part] | None:
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
            (attention if "attn" in name or "attention" in name else rest).append(weight)
    return attention, rest


def _embedding(module: Part) -> Weight | None:
    tables = [weight for part in module.parts() if part.embedding for weight in part.weights]
    return max(tables, key=lambda weight: weight.size, default=None)


def _has_output(module: Part, embedding: Weight) -> bool:
    """Whether a matrix of its own leads back to the vocabulary."""
    weights = (weight for _, weight in module.named_weights())
    return any(weight.shape == embedding.shape and weight.number != embedding.number for weight in weights)
