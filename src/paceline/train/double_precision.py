"""Let a model compute in double precision for a moment: rounding then differs little, and faults differ as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def in_double(model: Any) -> Iterator[None]:
    """Return a context in which the weights and buffers of a model are in double precision, without gradients.

    At the end, the same weights, buffers and gradients are there as before, with the same memory.

    Args:
        model: A module whose weights are not sharded.
    """
    gradients = [(weight, weight.grad) for weight in model.parameters()]
    values = [*model.parameters(), *model.buffers()]
    kept = [(value, value.data) for value in values if value.is_floating_point() and not value.is_sparse]
    try:
        for weight, _ in gradients:
            weight.grad = None  # a gradient must have the precision of its weight
        for value, before in kept:
            value.data = before.double()
        yield
    finally:
        for weight, _ in gradients:
            weight.grad = None
        for value, before in kept:
            value.data = before
        for weight, gradient in gradients:
            weight.grad = gradient


def as_double(value: Any) -> Any:
    """Return a tensor of floating-point numbers in double precision; anything else as it is."""
    return value.double() if hasattr(value, "is_floating_point") and value.is_floating_point() else value
