"""What is a module made of? Its tree of parts with the shapes of their weights, as `observe.probe.anatomy` noted it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Weight:
    """A parameter; one that is shared has the same number wherever it is."""

    name: str
    shape: tuple[int, ...]
    number: int
    frozen: bool = False  # no optimizer has it, or it wants no gradient

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
    said: Mapping[str, int] = field(default_factory=dict)  # by attributes or a config

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
        said=record.get("said", {}),
        weights=tuple(
            Weight(name, tuple(shape), number, name in record.get("frozen", ()))
            for name, shape, number in record["weights"]
        ),
        children=tuple((name, part_of(child)) for name, child in record["children"]),
    )
