"""When are two results the same but for rounding? Compared element by element, with a measured amount of rounding.

The call with a part of the rows is repeated with each weight changed by one unit in the last place. How much each
element moves by that is its sensitivity to rounding; an element may differ by some times as much, and by a small share
of its own value. So a few huge values, such as masks of -1e9, do not hide differences of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_OWN_SHARE = 2e-5  # of an element's own value, in fp32
_TIMES = 40.0  # of what one unit in the last place moves
_OWN_SHARE_16_BIT = 2e-2
_TIMES_16_BIT = 8.0
_OF_NORM = 2e-4  # of the norm of a gradient: where a ReLU flips, single elements move further


@dataclass(frozen=True)
class Tolerance:
    """How far apart results may be.

    Attributes:
        low_precision: The model computes in a 16-bit format.
    """

    low_precision: bool

    @property
    def times(self) -> float:
        """How many times the measured rounding is allowed."""
        return _TIMES_16_BIT if self.low_precision else _TIMES

    @property
    def own_share(self) -> float:
        """The share of an element's own value that is allowed."""
        return _OWN_SHARE_16_BIT if self.low_precision else _OWN_SHARE

    def near(self, torch: Any, found: Any, expected: Any, shaken: Any) -> bool:
        """Return whether a tensor has the expected values.

        Args:
            torch: The torch module.
            found: What is compared.
            expected: Of the same shape.
            shaken: What `found` becomes with weights changed by one unit in the last place.
        """
        if not (expected.is_floating_point() or expected.is_complex()):
            return bool(torch.equal(found, expected))
        found, expected, shaken = (_wide(torch, each) for each in (found, expected, shaken))
        equal = (found == expected) | (found.isnan() & expected.isnan())
        if bool(equal.all()):
            return True
        return bool((equal | ((found - expected).abs() <= self._limit(torch, expected, found, shaken))).all())

    def near_gradient(self, torch: Any, found: Any, expected: Any, shaken: Any, largest: float) -> bool:
        """Return whether a gradient is the expected one, by the norm of the error.

        Args:
            torch: The torch module.
            found: What is compared.
            expected: Of the same shape.
            shaken: What `found` becomes with weights changed by one unit in the last place.
            largest: Element of all gradients of the model; what is tiny beside it is rounding.
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
        """Return how far off a number may be, relative to itself."""
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
