"""Which convolutional network is a module? Read from the products that one pass over a batch has made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.errors import UsageError
from paceline.plan.model import ConvNet
from paceline.plan.parts import Part

_MOSTLY = 0.5  # share of the FLOPs that convolutions must have
_GATED = (".SiLU", ".Hardswish", ".SqueezeExcitation")


def convnet_of(
    module: Part, name: str, products: Sequence[Mapping[str, Any]], kept: Mapping[str, int], samples: int
) -> ConvNet:
    """Count a network by its convolutions; a linear layer counts as one over a single place.

    Args:
        module: What its weights are, and which classes it has.
        name: Of its class.
        products: As `observe.probe.anatomy.products` notes them.
        kept: As `observe.probe.kept` counted it.
        samples: Of the batch.

    Raises:
        UsageError: Most of its work is not in convolutions.
    """
    flops = sum(_flops(products, samples))
    convolved = sum(_flops([each for each in products if each["kind"] == "convolution"], samples))
    if not products or convolved < _MOSTLY * flops:
        raise UsageError(
            f"{name} was given pictures or signals, and {len(products)} convolutions and linear layers were seen, with "
            f"{convolved / max(flops, 1.0):.0%} of the work in convolutions; networks that mostly convolve are planned"
        )
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
