"""Reads architectures from the module tree of a model: weight shapes, and the products of one forward pass.

The blocks are the largest list of modules of one class. In a block, matrices whose name contains ``attn`` or
``attention`` belong to attention, the others to the feed-forward. With hidden width h and A attention weights, the
number of key/value heads is A/(2h²) - 1 times the number of heads. Experts are matrices under a name with ``expert``
(``shared``: used by every token), as a list of modules or stacked. The narrowest matrix has the width of one expert; an
expert is gated if its matrices have three times as many weights in total. If blocks and embeddings do not explain the
number of weights, the model is refused.

A network for images is read from the products (convolutions and linear layers) that one forward pass computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.models.architecture import DESCRIBE_BY_NUMBERS, USUAL_TOP_K, ConvNet, Model, Transformer


@dataclass(frozen=True)
class Weight:
    """A parameter; a shared parameter has the same number wherever it is used."""

    name: str
    shape: tuple[int, ...]
    number: int
    frozen: bool = False  # no optimizer updates it, or it needs no gradient

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ModulePart:
    """A module with its own weights and its children."""

    kind: str
    embedding: bool
    heads: int | None
    weights: tuple[Weight, ...]
    children: tuple[tuple[str, ModulePart], ...]
    said: Mapping[str, int] = field(default_factory=dict)  # numbers that its attributes or its config state

    def parts(self) -> Iterator[ModulePart]:
        """Yield this module and all modules below it."""
        yield self
        for _, child in self.children:
            yield from child.parts()

    def named_weights(self, above: str = "") -> Iterator[tuple[str, Weight]]:
        """Yield all weights with their dotted names; a shared weight appears once for each use."""
        for weight in self.weights:
            yield above + weight.name, weight
        for name, child in self.children:
            yield from child.named_weights(f"{above}{name}.")

    @cached_property
    def params(self) -> int:
        """Return the number of elements of all weights; shared weights are counted once."""
        return sum({weight.number: weight.size for _, weight in self.named_weights()}.values())


def module_part(record: Mapping[str, Any]) -> ModulePart:
    """Return the module tree for a record that `inprocess.first_step.module_tree.described` made."""
    return ModulePart(
        kind=record["kind"],
        embedding=record["embedding"],
        heads=record["heads"],
        said=record.get("said", {}),
        weights=tuple(
            Weight(name, tuple(shape), number, name in record.get("frozen", ()))
            for name, shape, number in record["weights"]
        ),
        children=tuple((name, module_part(child)) for name, child in record["children"]),
    )


@dataclass(frozen=True, kw_only=True)
class Width:
    """The width of a feed-forward network, and whether it has a gate."""

    ffn: int
    gated: bool


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of one block: their number, the width of each, and the width of experts that all tokens use."""

    count: int
    each: Width
    shared_ffn: int


def experts_of(block: ModulePart, hidden: int) -> Experts | None:
    """Return the experts of a block; None if it has none."""
    named = list(block.named_weights())
    # key: the name after the list of experts, which is an expert's number or the name of a stacked weight
    routed = [(name.partition("expert")[2].split(".")[1], weight) for name, weight in named if is_routed(name)]
    stacked = [weight for _, weight in routed if len(weight.shape) == 3]
    listed = [(number, weight.size) for number, weight in routed if number.isdigit() and len(weight.shape) == 2]
    if stacked:
        count = stacked[0].shape[0]
        sizes = [weight.size // count for weight in stacked]
    else:
        count = len({number for number, _ in listed})
        sizes = [size for number, size in listed if number == listed[0][0]]
    if count < 2 or not sizes:
        return None
    each = width_of(sizes, hidden)
    shared = sum(
        weight.size for name, weight in named if "shared" in name and len(weight.shape) == 2 and min(weight.shape) > 1
    )
    return Experts(count=count, each=each, shared_ffn=round(shared / hidden / (3 if each.gated else 2)))


def is_routed(name: str) -> bool:
    """Return whether a weight of this name belongs to a routed expert."""
    return "expert" in name and "shared" not in name and "." in name.partition("expert")[2]


def width_of(sizes: Sequence[int], hidden: int) -> Width:
    """Return the width of a feed-forward network, and whether it is gated.

    Args:
        sizes: The number of weights of each of its matrices.
        hidden: The hidden width of the model.
    """
    narrowest = min(sizes)
    return Width(ffn=max(1, narrowest // hidden), gated=round(sum(sizes) / narrowest) >= 3)


_UNEXPLAINED = 0.05  # share of the weights that may be neither block nor embedding


def transformer_of(module: ModulePart, name: str, seq: int) -> Transformer:
    """Return the transformer that a module tree contains.

    Args:
        module: The module tree.
        name: The name for messages.
        seq: Tokens per sample.

    Raises:
        UsageError: The tree has no blocks with attention and feed-forward, or the blocks and embeddings do not explain
            its number of weights.
    """
    blocks, embedding = blocks_of(module), _embedding(module)
    if blocks is None or embedding is None:
        raise UsageError(
            f"{name} has no list of identical blocks with attention, or no embedding; {DESCRIBE_BY_NUMBERS}"
        )
    vocab, hidden = embedding.shape
    tied = not _has_output(module, embedding)
    found = Transformer(
        name=name, hidden=hidden, vocab=vocab, seq=seq, tied=tied, **block_fields(module, name, blocks, hidden)
    )
    return _explained(found, module.params)


def block_fields(module: ModulePart, name: str, blocks: list[ModulePart], hidden: int) -> dict[str, Any]:
    """Return those fields of a `Transformer` that can be read from its blocks.

    Raises:
        UsageError: Attention and feed-forward were not recognized.
    """
    attention = _matrices(blocks[0])[0]
    sparse = [each for each in (experts_of(block, hidden) for block in blocks) if each]
    width = _width([block for block in blocks if not experts_of(block, hidden)], hidden) or (sparse and sparse[0].each)
    if not attention or not width:
        raise UsageError(
            f"Paceline recognized no attention and feed-forward layers in the blocks of {name}; {DESCRIBE_BY_NUMBERS}"
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


def attention_width(block: ModulePart) -> int | None:
    """Return the smallest dimension of a block's attention matrices; None without attention."""
    return min((min(each.shape) for each in _matrices(block)[0]), default=None)


def in_attention(name: str) -> bool:
    """Return whether a dotted name belongs to attention."""
    return "attn" in name or "attention" in name


def _routed(top_k: int | None, sparse: list[Experts], blocks: int) -> dict[str, Any]:
    """Return the fields of a `Transformer` that describe its experts; empty if no block has experts."""
    if not sparse:
        return {}
    first = sparse[0]
    return {
        "experts": first.count,
        "top_k": min(top_k or USUAL_TOP_K, first.count),
        "expert_ffn": first.each.ffn,
        "shared_ffn": first.shared_ffn,
        "dense_layers": blocks - len(sparse),
    }


def _near(module: ModulePart, blocks: list[ModulePart]) -> Iterator[ModulePart]:
    """Yield the modules inside and around the first block; other parts of a model can have other settings."""
    yield from blocks[0].parts()
    yield from _above(module, blocks[0]) or ()


def _above(part: ModulePart, block: ModulePart) -> list[ModulePart] | None:
    """Return the modules around a block, outermost first; None if the block is not below `part`."""
    if part is block:
        return []
    found = next((each for _, child in part.children if (each := _above(child, block)) is not None), None)
    return None if found is None else [part, *found]


def _said(parts: Iterator[ModulePart], name: str) -> int | None:
    """Return the first value with this name that a module has as an attribute; None if no module has one."""
    return next((part.said[name] for part in parts if part.said.get(name)), None)


def _head_dim(module: ModulePart, blocks: list[ModulePart]) -> int | None:
    """Return the width of a head (for latent attention, the mean width of keys and values); None if unknown."""
    keys, values, both = (_said(_near(module, blocks), f"{name}_dim") for name in ("keys", "values", "head"))
    return (keys + values) // 2 if keys and values else both


def _kv_heads(said: int | None, heads: int, share: float) -> int:
    """Return the number of key/value heads: the stated one, or the divisor of `heads` closest to `heads * share`."""
    if said and heads % said == 0:
        return said
    divisors = [each for each in range(1, heads + 1) if heads % each == 0]
    return min(divisors, key=lambda each: abs(each - heads * min(1.0, share)))


def _width(dense: list[ModulePart], hidden: int) -> Width | None:
    """Return the feed-forward width of blocks without experts; None without such blocks.

    A gated block can have its two input matrices in one.
    """
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
            f"and their embeddings account for {found.params / 1e6:,.1f} million; {DESCRIBE_BY_NUMBERS}"
        )
    return found


def blocks_of(module: ModulePart) -> list[ModulePart] | None:
    """Return the blocks of a model; None if there are none.

    They are children of one module with the same class and with attention; of several such groups, the one with most
    weights.
    """
    best, most = None, 0
    for parent in module.parts():
        children = [child for _, child in parent.children if child.params]
        for kind, count in Counter(child.kind for child in children).items():
            members = [child for child in children if child.kind == kind]
            weights = sum(member.params for member in members)
            if count > 1 and weights > most and _matrices(members[0])[0]:
                best, most = members, weights
    return best


def _matrices(block: ModulePart) -> tuple[list[Weight], list[Weight]]:
    """Return the two-dimensional weights of a block: those of attention, and the others."""
    attention: list[Weight] = []
    rest: list[Weight] = []
    for name, weight in block.named_weights():
        if len(weight.shape) == 2:
            (attention if in_attention(name) else rest).append(weight)
    return attention, rest


def _embedding(module: ModulePart) -> Weight | None:
    tables = [weight for part in module.parts() if part.embedding for weight in part.weights]
    return max(tables, key=lambda weight: weight.size, default=None)


def _has_output(module: ModulePart, embedding: Weight) -> bool:
    """Return whether the model has an output matrix of its own, with the same shape as the embedding."""
    weights = (weight for _, weight in module.named_weights())
    return any(weight.shape == embedding.shape and weight.number != embedding.number for weight in weights)


_MOSTLY = 0.5  # least share of the FLOPs in convolutions
_PATCHES = 0.25  # largest share of a vision transformer's weights in patches, positions and norms
_GATED = (".SiLU", ".Hardswish", ".SqueezeExcitation")


def image_network_of(
    module: ModulePart, name: str, products: Sequence[Mapping[str, Any]], kept: Mapping[str, int], samples: int
) -> Model:
    """Return a network for images: convolutional, or a vision transformer.

    Args:
        module: The module tree.
        name: Name of the module's class.
        products: The products that `inprocess.first_step.module_tree.products` recorded.
        kept: The counts of `inprocess.first_step.saved_tensors`.
        samples: Samples of the batch.

    Raises:
        UsageError: The network is neither convolutional nor a vision transformer.
    """
    flops = sum(_flops(products, samples))
    convolved = sum(_flops([each for each in products if each["kind"] == "convolution"], samples))
    if products and convolved >= _MOSTLY * flops:
        return _convnet(module, name, products, kept, samples)
    found = _vision(module, name, [each for each in products if each["kind"] == "linear"], samples)
    if found is None:
        raise UsageError(
            f"{name} takes images or signals, and {convolved / max(flops, 1.0):.0%} of the FLOPs of its "
            f"{len(products)} convolutions and linear layers are in convolutions; paceline plan supports networks "
            f"with mostly convolutions, and vision transformers whose attention modules are named attn or attention"
        )
    return found


def _vision(module: ModulePart, name: str, linear: Sequence[Mapping[str, Any]], samples: int) -> Transformer | None:
    """Return a vision transformer; None if the module is not a vision transformer.

    The number of tokens is that of the positions of the largest layer, and the number of labels is that of the outputs
    of the last layer. All other weights outside the blocks belong to patches and positions, and must be a small share.
    """
    blocks = blocks_of(module)
    hidden = attention_width(blocks[0]) if blocks else None
    if blocks is None or hidden is None or not linear:
        return None
    most = max(linear, key=lambda each: each["weights"] * each["outputs"] / each["channels"])
    seq, labels = round(most["outputs"] / most["channels"] / samples), int(linear[-1]["channels"])
    fields = block_fields(module, name, blocks, hidden)
    bare = Transformer(name=name, hidden=hidden, vocab=labels, seq=seq, causal=False, head_share=1.0 / seq, **fields)
    rest = module.params - bare.params
    return replace(bare, positions=max(0, rest // hidden)) if abs(rest) < _PATCHES * module.params else None


def _convnet(
    module: ModulePart, name: str, products: Sequence[Mapping[str, Any]], kept: Mapping[str, int], samples: int
) -> ConvNet:
    """Return the convolutional network with these layers; a linear layer counts as a convolution at one position."""
    flops = sum(_flops(products, samples))
    return ConvNet(
        name=name,
        params=module.params,
        flops=flops,
        narrow_flops=sum(_flops([each for each in products if each["groups"] > 1], samples)),
        outputs=sum(each["outputs"] for each in products) / samples,
        layers=len(products),
        kept=kept["elements"] / samples,
        kept_bytes=kept["other_bytes"] / samples,
        gated=any(part.kind.endswith(_GATED) for part in module.parts()),
    )


def _flops(products: Sequence[Mapping[str, Any]], samples: int) -> Iterator[float]:
    """Yield the FLOPs of each product for one sample: two for each weight and position."""
    for each in products:
        yield 2.0 * each["weights"] * each["outputs"] / each["channels"] / samples
