"""What is a module made of? Its tree as a record: classes, shapes of the weights, and who shares a weight."""

from __future__ import annotations

import sys
from typing import Any

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead")


def described(module: Any) -> dict[str, Any]:
    """Return a module, on any device, and what is below it.

    Keys of a part: ``kind`` (its class), ``embedding``, ``heads`` (where an attribute or a config says so), ``weights``
    (name, shape, a number that only a shared weight has twice) and ``children`` (name, part).
    """
    return _part(module, {})


def products(module: Any, made: Any) -> list[dict[str, Any]]:
    """Return the product of a convolution or linear layer that has made a tensor; nothing of other modules.

    Keys: ``kind`` (its class), ``weights``, ``groups``, ``channels`` and ``outputs`` (elements of the whole batch).
    """
    torch = sys.modules["torch"]
    convolution = isinstance(module, torch.nn.modules.conv._ConvNd)
    if not isinstance(made, torch.Tensor) or not (convolution or isinstance(module, torch.nn.Linear)):
        return []
    return [
        {
            "kind": "convolution" if convolution else "linear",
            "weights": module.weight.numel(),
            "groups": module.groups if convolution else 1,
            "channels": module.weight.shape[0],
            "outputs": made.numel(),
        }
    ]


def _part(module: Any, numbers: dict[int, int]) -> dict[str, Any]:
    own = vars(module).get("_parameters", {})
    weights = [
        [name, list(weight.shape), numbers.setdefault(id(weight), len(numbers))]
        for name, weight in own.items()
        if weight is not None
    ]
    return {
        "kind": f"{type(module).__module__}.{type(module).__qualname__}",
        "embedding": isinstance(module, sys.modules["torch"].nn.Embedding),
        "heads": _heads(module),
        "weights": weights,
        "children": [[name, _part(child, numbers)] for name, child in module.named_children()],
    }


def _heads(module: Any) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for name in _HEADS:
            value = getattr(owner, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None
