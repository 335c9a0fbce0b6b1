"""How is an operator of a block run by itself? On tensors of the same shapes and strides, made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.observe.probe.tally import Tally
from paceline.plan.operators import FREE, kind_of


def operators_of(step: Any) -> dict[str, Any]:
    """Count one step, as `Tally.described` tells it."""
    tally = Tally()
    tally.enter()
    try:
        step()
    finally:
        tally.leave()
    return tally.described()


def distinct(operators: list[Mapping[str, Any]], known: set[Any]) -> list[Mapping[str, Any]]:
    """Return operators whose time is not known from others, and add them to the known."""
    found = []
    for operator in operators:
        kind = kind_of(operator)
        key = (kind.family, kind.sizes)
        if kind.family != FREE and key not in known:
            known.add(key)
            found.append(operator)
    return found


def call_of(operator: Mapping[str, Any], device: Any) -> Any:
    """Return what calls an operator on new tensors; None where it cannot be made again."""
    import torch

    try:
        space, name, overload = operator["op"].split(".")
        function = getattr(getattr(getattr(torch.ops, space), name), overload)
        args = [_made(torch, each, device) for each in operator["args"]]
        kwargs = {key: _made(torch, each, device) for key, each in operator["kwargs"].items()}
        with torch.no_grad():
            function(*args, **kwargs)
    except (ValueError, AttributeError, RuntimeError, TypeError, IndexError):
        return None
    return lambda: function(*args, **kwargs)


def _made(torch: Any, value: Any, device: Any) -> Any:
    if isinstance(value, dict) and "t" in value:
        return _tensor(torch, value["t"], device)
    if isinstance(value, dict) and "s" in value:
        return _named(torch, value["s"], device)
    return [_made(torch, each, device) for each in value] if isinstance(value, list) else value


def _tensor(torch: Any, told: list[Any], device: Any) -> Any:
    shape, strides, dtype = told
    kind = getattr(torch, dtype)
    made = torch.empty_strided(shape, strides, dtype=kind, device=device)
    if kind.is_floating_point:
        return made.uniform_(0.1, 1.0)
    return made.zero_()


def _named(torch: Any, name: str, device: Any) -> Any:
    """Return a dtype, layout or memory format by its name; a device becomes the one that is measured."""
    plain = name.removeprefix("torch.")
    found = getattr(torch, plain, None)
    return found if isinstance(found, torch.dtype | torch.layout | torch.memory_format) else device
