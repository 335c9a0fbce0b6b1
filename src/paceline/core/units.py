"""Functions that format quantities as text, one for each unit. A missing value becomes ``n/a``.

Inputs are in SI base units (seconds, bytes, fractions). The size of a value decides the unit of the text.
"""

from __future__ import annotations

import math

MISSING = "n/a"
_TIME_STEPS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs"))
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def is_missing(value: float | None) -> bool:
    """Return whether a quantity was not measured (None or NaN)."""
    return value is None or math.isnan(value)


def significant(value: float, digits: int = 3) -> str:
    """Return a number as text with ``digits`` significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def seconds(value: float | None) -> str:
    """Return a duration as text: ``1.24 ms``, ``3.1 s``, ``2 min 05 s``, ``3 h 07 min``."""
    if value is None or math.isnan(value):
        return MISSING
    if value >= 3600:
        minutes = round(value / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if value >= 120:
        whole = round(value)
        return f"{whole // 60} min {whole % 60:02d} s"
    if value == 0:
        return "0 s"
    for floor, factor, unit in _TIME_STEPS:
        if abs(value) >= floor:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value * 1e9)} ns"


def signed_seconds(value: float) -> str:
    """Return a time difference as text with its sign: ``+1.24 ms``."""
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def rough_seconds(value: float) -> str:
    """Return an estimated duration as text: ``40 s``, ``3 min``, ``1 h 20 min``."""
    if value < 60:
        return f"{max(1, round(value))} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(value: float | None) -> str:
    """Return a number of bytes as text in binary units: ``1.5 GiB``."""
    if value is None or math.isnan(value):
        return MISSING
    unit = 0
    while abs(value) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{significant(value)} {_BYTE_UNITS[unit]}"


def percent(value: float | None) -> str:
    """Return a fraction as a percentage: 0.256 becomes ``26%``, 0.034 becomes ``3.4%``."""
    if value is None or math.isnan(value):
        return MISSING
    scaled = value * 100
    return f"{scaled:.0f}%" if abs(scaled) >= 10 else f"{scaled:.1f}%"


def factor(value: float | None) -> str:
    """Return a speed-up as text: ``1.85x``."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def factor_bounds(low: float, high: float, sample: str) -> str:
    """Return the 95% interval of a speed-up as text: ``95% CI 2.41–3.55, 24 pairs``.

    Args:
        low: The lower bound.
        high: The upper bound; infinite if it is unknown.
        sample: The observations behind the interval, such as ``24 pairs``.
    """
    if math.isfinite(high):
        return f"95% CI {factor(low).removesuffix('x')}–{factor(high).removesuffix('x')}, {sample}"
    if low > 0:
        return f"95% CI from {factor(low)}, no upper limit known, {sample}"
    return f"{sample}, too few for an interval"


def rate(value: float | None, unit: str) -> str:
    """Return a rate as text: ``1,240 samples/s``."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:,.0f} {unit}" if value >= 100 else f"{significant(value)} {unit}"


def money(value: float | None, currency: str = "USD") -> str:
    """Return an amount of money as text with two decimals, or two significant digits below a cent."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:,.2f} {currency}" if abs(value) >= 0.01 or value == 0 else f"{significant(value, 2)} {currency}"


def count(number: float, noun: str) -> str:
    """Return a number with its noun: ``1 step``, ``1,240 steps``, ``2 batches``."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "sh", "ch", "x")) else "s"
    return f"{number:,.0f} {noun}{ending}"


def of_one(unit: str) -> str:
    """Return the singular of a unit: ``core`` for ``cores``. A unit such as ``samples/s`` stays unchanged."""
    return unit.removesuffix("s") if unit.strip().isalpha() and len(unit.strip()) > 3 else unit


def ago(age_s: float) -> str:
    """Return an age as text: ``5 s ago``, ``3 min ago``, ``2 days ago``."""
    if age_s < 0:
        return "just now"
    for unit_s, unit in ((86400, "day"), (3600, "h"), (60, "min"), (1, "s")):
        if age_s >= 2 * unit_s or unit == "s":
            number = max(1, round(age_s / unit_s))
            return f"{count(number, unit)} ago" if unit == "day" else f"{number} {unit} ago"
    raise AssertionError
