"""Tolerances for the comparison of two results: differences up to a measured amount of rounding are allowed.

The call with a part of the rows is repeated with each weight changed by one unit in the last place (ULP). The change of
each element is its sensitivity to rounding. An element may differ by a multiple of this change plus a small share of
its own value. So a few huge values, such as masks of -1e9, do not hide differences of other elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NEAR = 1e-5  # relative difference of Python numbers
_OWN_SHARE = 2e-5  # relative to an element's own value, in fp32
_TIMES = 40.0  # the multiple of the change by one ULP
_OWN_SHARE_16_BIT = 2e-2
_TIMES_16_BIT = 8.0
_OF_NORM = 2e-4  # relative to the norm of a gradient; single elements differ more if a ReLU flips


@dataclass(frozen=True)
class Tolerance:
    """The allowed differences between two results.

    Attributes:
        low_precision: Whether the model computes in a 16-bit format.
    """

    low_precision: bool

    @property
    def times(self) -> float:
        """The allowed multiple of the measured rounding."""
        return _TIMES_16_BIT if self.low_precision else _TIMES

    @property
    def own_share(self) -> float:
        """The allowed difference relative to an element's own value."""
        return _OWN_SHARE_16_BIT if self.low_precision else _OWN_SHARE

    def near(self, torch: Any, found: Any, expected: Any, shaken: Any) -> bool:
        """Return whether a tensor equals the expected one within the tolerance; integers must be equal.

        Args:
            torch: The torch module.
            found: The tensor to check.
            expected: The expected tensor, of the same shape.
            shaken: The tensor `found` from a call with weights changed by one unit in the last place.
        """
        if not (expected.is_floating_point() or expected.is_complex()):
            return bool(torch.equal(found, expected))
        found, expected, shaken = (_wide(torch, each) for each in (found, expected, shaken))
        equal = (found == expected) | (found.isnan() & expected.isnan())
        if bool(equal.all()):
            return True
        return bool((equal | ((found - expected).abs() <= self._limit(torch, expected, found, shaken))).all())

    def near_mean(self, torch: Any, name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
        """Return whether a buffer is a running mean of BatchNorm that equals the expected one, except for rounding.

        The mean of standardized values is near 0. Its rounding error has the size of the values, not of the mean.

        Args:
            torch: The torch module.
            name: The name of a buffer, which may be no running mean.
            found: Buffers by name.
            expected: The expected buffers by name.
        """
        spread = name.removesuffix("running_mean") + "running_var"
        given: list[Any] = [found.get(name), expected.get(name), expected.get(spread)]
        if not name.endswith("running_mean") or not all(isinstance(each, torch.Tensor) for each in given):
            return False
        one, two, variance = given
        if one.shape != two.shape or one.shape != variance.shape:
            return False
        return bool(((one - two).abs() <= self.own_share * variance.clamp(min=0).sqrt()).all())

    def near_gradient(self, torch: Any, found: Any, expected: Any, shaken: Any, largest: float) -> bool:
        """Return whether the norm of a gradient's error is within the tolerance.

        Args:
            torch: The torch module.
            found: The gradient to check.
            expected: The expected gradient, of the same shape.
            shaken: The gradient `found` from a call with weights changed by one unit in the last place.
            largest: The largest absolute element of the model's gradients; much smaller errors count as rounding.
        """
        found, expected, shaken = (_wide(torch, each) for each in (found, expected, shaken))
        if not bool(found.isfinite().all()):
            return bool((found.isfinite() == expected.isfinite()).all())
        error, norm = float((found - expected).norm()), float(expected.norm())
        noise = float((shaken - found).norm())
        of_norm = _OWN_SHARE_16_BIT if self.low_precision else _OF_NORM
        rounding = (1e-2 if self.low_precision else 1e-6) * largest * found.numel() ** 0.5
        return error <= of_norm * norm + self.times * noise + rounding

    def number(self, expected: float, noise: float) -> float:
        """Return the allowed relative error of a number.

        Args:
            expected: The expected number.
            noise: The change of the number when each weight changes by one unit in the last place.
        """
        own = 1e-2 if self.low_precision else 1e-5
        return own + self.times * noise / max(abs(expected), 1e-6)

    def _limit(self, torch: Any, expected: Any, found: Any, shaken: Any) -> Any:
        noise = (shaken - found).abs().nan_to_num(0.0, 0.0, 0.0)
        moved = noise[noise > 0]
        floor = moved.median() if moved.numel() else noise.new_zeros(())
        return self.times * (noise + floor) + self.own_share * expected.abs()


def _wide(torch: Any, value: Any) -> Any:
    value = torch.view_as_real(value) if value.is_complex() else value
    return value.detach().double()
