"""Which network is a module that takes pictures? Read from the products that one pass over a batch has made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.anatomy import attention_width, block_fields, blocks_of
from paceline.plan.model import ConvNet, Model, Transformer
from paceline.plan.parts import Part

_MOSTLY = 0.5  # share of the FLOPs that convolutions must have
_PATCHES = 0.25  # share of a vision transformer's weights that patches, positions and norms may have
_GATED = (".SiLU", ".Hardswish", ".SqueezeExcitation")


def network_of(
    module: Part, name: str, products: Sequence[Mapping[str, Any]], kept: Mapping[str, int], samples: int
) -> Model:
    """Read a network that takes pictures: a convolutional one, or a vision transformer.

    Args:
        module: What its weights are, and which classes it has.
        name: Of its class.
        products: As `observe.probe.anatomy.products` notes them.
        kept: As `observe.probe.kept` counted it.
        samples: Of the batch.

    Raises:
        UsageError: It is neither.
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


def _vision(module: Part, name: str, linear: Sequence[Mapping[str, Any]], samples: int) -> Transformer | None:
    """Read a vision transformer: its tokens are the places that its largest layers work at, its last layer has labels.

    What neither blocks nor labels explain is of patches and positions, and little of the whole.
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
    module: Part, name: str, products: Sequence[Mapping[str, Any]], kept: Mapping[str, int], samples: int
) -> ConvNet:
    """Count a network by its convolutions; a linear layer counts as one over a single place."""
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
    """Two for a weight at each place of a sample."""
    for each in products:
        yield 2.0 * each["weights"] * each["outputs"] / each["channels"] / samples
