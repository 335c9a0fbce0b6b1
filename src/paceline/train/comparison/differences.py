"""Measures how far two tensors differ, beyond rounding.

Elements are compared one by one: |a - b| may be at most r (|b| + s), where s is the root mean square of b without its
extreme elements (a mask of -1e9 would hide all others) and r depends on the format. If an element exceeds that,
rounding is measured: the whole model runs once more with its parameters changed in their last bits, and |a - b| may be
up to `_TIMES` times the resulting change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.train.unmodified.snapshot import values_differ

_RELATIVE = {8: 1e-9, 4: 1e-4, 2: 3e-2}  # by bytes of an element
_LAST_BITS = {8: 2.0**-51, 4: 2.0**-22, 2: 2.0**-8}
_TIMES = {8: 32.0, 4: 32.0, 2: 16.0}
_SAMPLED = 16384  # elements
_EXTREME = 1e3  # times the lower quartile of the elements that are not 0


def scale_of(value: Any) -> float:
    """Return the root mean square of a tensor without its extreme elements; 0 if all are 0.

    A large tensor is sampled at a fixed stride.
    """
    flat = value.detach().flatten()
    sizes = flat[:: -(-flat.numel() // _SAMPLED) or 1].double().abs()
    count = sizes.numel()
    sizes = sizes[sizes.isfinite() & (sizes > 0)]
    if not sizes.numel():
        return 0.0
    lower = sizes.kthvalue(max(1, sizes.numel() // 4)).values
    kept = sizes[sizes <= _EXTREME * lower]
    return float((kept**2).mean().sqrt() * (kept.numel() / count) ** 0.5)


def excess(own: Any, expected: Any, item_bytes: int, noise: float = 0.0) -> float:
    """Return the largest difference of two tensors, as a multiple of the tolerance; infinite if a value is NaN.

    For integers and booleans, the result is 0 if all elements are equal, and otherwise infinite.

    Args:
        own: A tensor of the split model.
        expected: The tensor of the whole model, of the same shape.
        item_bytes: Bytes of an element of the format that both models compute in.
        noise: Root mean square of the change that rounding causes.
    """
    import torch

    one, other = own.detach(), expected.detach()
    if not other.is_floating_point() and not other.is_complex():
        return 0.0 if torch.equal(one, other) else float("inf")
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.dtype != torch.float32 or other.dtype != torch.float32:
        one, other = one.double(), other.double()
    if not one.numel():
        return 0.0
    least = _RELATIVE[item_bytes] * scale_of(other) + _TIMES[item_bytes] * noise
    apart = (one - other).abs_()
    if float(apart.max()) <= least:  # false if a value is NaN
        return float(apart.max()) / least if least else 0.0
    same = (one == other) | (one.isnan() & other.isnan())
    apart = (apart.double() / (_RELATIVE[item_bytes] * other.double().abs() + least).clamp(min=1e-300)).masked_fill(
        same, 0
    )
    return float(apart.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def relative(own: Any, expected: Any) -> float:
    """Return the norm of the difference as a share of the norm of the expected tensor, at most 1000; for messages."""
    one, other = own.detach().double(), expected.detach().double()
    found = float((one - other).norm() / other.norm().clamp(min=1e-300))
    return found if found < 1e3 else 1e3


def names_of_differing(own: Mapping[Any, Any], expected: Mapping[Any, Any], item_bytes: int) -> list[Any]:
    """Return the names of values that differ beyond rounding, or that only one of two dicts has.

    Args:
        own: Tensors, arrays and Python values by name, changed by the split model.
        expected: Those changed by the whole model.
        item_bytes: Bytes of an element of the format that both models compute in.
    """
    both = own.keys() & expected.keys()
    return sorted(
        (own.keys() ^ expected.keys()) | {name for name in both if _differ(own[name], expected[name], item_bytes)}
    )


def _differ(one: Any, other: Any, item_bytes: int) -> bool:
    import torch

    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is not type(other) or values_differ(one, other, _RELATIVE[item_bytes])
    return one.shape != other.shape or excess(one, other, item_bytes) > 1


def noise_of(value: Any, changed: Any) -> float:
    """Return the root mean square of the change of a tensor caused by changing the last bits of parameters.

    Args:
        value: The tensor with the original parameters.
        changed: The tensor with the changed parameters.
    """
    found = float((value.detach().double() - changed.detach().double()).pow(2).mean().sqrt())
    return found if found < float("inf") else 0.0


def times(item_bytes: int) -> float:
    """Return the multiple of measured rounding that is allowed for a format with `item_bytes` bytes."""
    return _TIMES[item_bytes]


def last_bits(item_bytes: int) -> float:
    """Return the relative size of a change in the last bits of a format with `item_bytes` bytes."""
    return _LAST_BITS[item_bytes]
