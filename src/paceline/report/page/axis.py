"""The axes of charts: the position of a value, and the round values to mark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.units import of_one

MAX_UNIT = 12  # longest unit in a label, in characters
# By unit: least high end of the axis, divisor, and displayed unit. The first entry that fits is used.
_COUNTS = ((1e6, 1e6, " M"), (2e4, 1e3, " k"), (0.0, 1.0, ""))
_BYTES = tuple((1024.0**i, 1024.0**i, f" {unit}") for i, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")))
_SCALES: Mapping[str, Sequence[tuple[float, float, str]]] = {
    "s": (
        (7200.0, 3600.0, " h"),
        (180.0, 60.0, " min"),
        (1.0, 1.0, " s"),
        (1e-3, 1e-3, " ms"),
        (0.0, 1e-6, " µs"),
    ),
    "steps": _COUNTS,
    "samples": _COUNTS,
    "": _COUNTS,
    "bytes": (*_BYTES, (0.0, 1.0, " B")),
    "bytes/s": (*((low, by, f"{name}/s") for low, by, name in _BYTES), (0.0, 1.0, " B/s")),
}


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values with their unit; `log` is True for a logarithmic axis."""

    low: float
    high: float
    unit: str
    log: bool = False

    def fraction(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end; 0 or 1 for values outside."""
        low, high, at = (self._scaled(x) for x in (self.low, self.high, value))
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.0

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Return the round values to mark, each with its label, all in one unit; at most about ``most``."""
        if self.log:
            return [(value, f"{value:g}") for value in _powers(self.low, self.high, most)]
        by, name = self._shown_in()
        values = _round_values(self.low / by, self.high / by, most, whole=self.unit == "steps" and by == 1)
        names = (of_one(name) if value == 1 else name for value in values)
        return [
            (value * by, f"{value:,g}{named}" if value else "0") for value, named in zip(values, names, strict=True)
        ]

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def _shown_in(self) -> tuple[float, str]:
        scales = _SCALES.get(self.unit, ((0.0, 1.0, "%" if self.unit == "%" else f" {self.unit[:MAX_UNIT]}"),))
        largest = max(abs(self.low), abs(self.high))
        return next((by, name) for above, by, name in scales if largest >= above)


def axis(values: Sequence[float], unit: str, *, floor: float | None = 0.0) -> Axis:
    """Return a linear axis that contains the values.

    Args:
        values: The values.
        unit: The unit of the values.
        floor: The low end of the axis; None to begin at the least value.
    """
    low = min(values, default=0.0) if floor is None else floor
    high = max(values, default=low)
    if high <= low:
        high = low + (abs(low) or 1.0)
    return Axis(low=low, high=high, unit=unit)


def log_axis(values: Sequence[float], unit: str) -> Axis:
    """Return a logarithmic axis from the least to the greatest of some positive values."""
    low, high = min(values), max(values)
    return Axis(low=low, high=high, unit=unit, log=True) if high > low else axis(values, unit, floor=None)


def _round_values(low: float, high: float, most: int, *, whole: bool) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten in the range, at most about ``most``."""
    raw = (high - low) / most
    if raw < 1e-290:  # the range is too narrow to divide
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    slack = 1e-9 * min(1.0, (high - low) / step)  # with whole numbers, a step may exceed the range
    first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
    return [i * step for i in range(first, last + 1)]


def _powers(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / most))
    return [10.0**i for i in range(first, last + 1, every)]
