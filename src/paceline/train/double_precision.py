"""Convert a model to double precision for a short time, so that a difference is a fault and not rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def in_double(model: Any) -> Iterator[None]:
    """Convert the weights and buffers of a model to double precision inside the context.

    Inside, weights have no gradients. At the end, the weights, buffers and gradients are the same tensors in the same
    memory as before.

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
    """Convert a tensor of floating-point numbers to double precision; return any other value unchanged."""
    return value.double() if hasattr(value, "is_floating_point") and value.is_floating_point() else value
