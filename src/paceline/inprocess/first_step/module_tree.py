"""A record of a module tree: classes, shapes of the weights, and which weights are shared."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any

_SAID = {
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "top_k"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "head_dim": ("head_dim",),
    "keys_dim": ("qk_head_dim",),  # per head, if the values have another dimension
    "values_dim": ("v_head_dim",),
}
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead")


def described(module: Any, trained: Container[int] | None = None) -> dict[str, Any]:
    """Describe a module on any device, and its submodules.

    Keys of a description: ``kind`` (the class of the module), ``embedding`` (whether it is an embedding), ``heads`` and
    ``said`` (the keys of `_SAID` that an attribute or a config has), ``weights`` (name, shape, a number that is equal
    for shared weights), ``frozen`` (names of weights whose id is not in `trained`; empty if `trained` is None) and
    ``children`` (name, description).
    """
    return _part(module, {}, trained)


def products(module: Any, made: Any) -> list[dict[str, Any]]:
    """Return a list with one description of the output of a convolution or linear layer; empty for other modules.

    Keys: ``kind`` (convolution or linear), ``weights``, ``groups``, ``channels`` and ``outputs`` (elements of the whole
    batch).
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


def _part(module: Any, numbers: dict[int, int], trained: Container[int] | None) -> dict[str, Any]:
    own = vars(module).get("_parameters", {})
    weights = [
        [name, list(weight.shape), numbers.setdefault(id(weight), len(numbers))]
        for name, weight in own.items()
        if weight is not None
    ]
    return {
        "kind": f"{type(module).__module__}.{type(module).__qualname__}",
        "embedding": isinstance(module, sys.modules["torch"].nn.Embedding),
        "heads": _said(module, _HEADS),
        "said": {name: value for name, words in _SAID.items() if (value := _said(module, words))},
        "weights": weights,
        "frozen": [name for name, weight in own.items() if _frozen(weight, trained)],
        "children": [[name, _part(child, numbers, trained)] for name, child in module.named_children()],
    }


def _frozen(weight: Any, trained: Container[int] | None) -> bool:
    return weight is not None and trained is not None and id(weight) not in trained


def _said(module: Any, names: tuple[str, ...]) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
