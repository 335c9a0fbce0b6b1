"""Which experts has a block? Read from its weights: a list of like modules, or matrices that are stacked.

What is routed to stands below a name with ``expert``, what every token passes below one with ``shared``. The narrowest
matrix tells the width; three times it in all is a gated expert, however its matrices are put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.plan.parts import Part


@dataclass(frozen=True, kw_only=True)
class Width:
    """Of a feed-forward."""

    ffn: int
    gated: bool


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Of one block: how many, how wide one is, how wide what all tokens pass is beside them."""

    count: int
    each: Width
    shared_ffn: int


def experts_of(block: Part, hidden: int) -> Experts | None:
    """Return the experts of a block; None where it has none."""
    named = list(block.named_weights())
    routed = [(_after(name), weight) for name, weight in named if is_routed(name)]
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
    """Say whether a weight of this name is of an expert that some tokens pass."""
    return "expert" in name and "shared" not in name and "." in name.partition("expert")[2]


def width_of(sizes: Sequence[int], hidden: int) -> Width:
    """Return the width of a feed-forward with matrices of these sizes."""
    narrowest = min(sizes)
    return Width(ffn=max(1, narrowest // hidden), gated=round(sum(sizes) / narrowest) >= 3)


def _after(name: str) -> str:
    """Return what follows the list of experts: the number of one, or the name of what is stacked."""
    return name.partition("expert")[2].split(".")[1]
