"""Search for tensors in the arguments or the result of a call, also in lists, tuples and dictionaries."""

from __future__ import annotations

from typing import Any


def tensors_in(torch: Any, value: Any) -> list[Any]:
    """Return all tensors in a value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for each in value for found in tensors_in(torch, each)] if isinstance(value, list | tuple) else []
