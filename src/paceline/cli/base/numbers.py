"""Numbers and durations as option values. Numbers are finite, because a price of `nan` makes every figure `nan`."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class FiniteFloat(click.FloatRange):
    """A parameter type for numbers within bounds that are neither infinite nor NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail if it is not finite."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number; give a number such as 2.5", param, ctx)
        return number


class Duration(click.ParamType[float]):
    """A parameter type for a time such as 90s, 10m or 1h; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if found is None or float(found[1]) <= 0:
            self.fail(f"{value!r} is not a duration; write 90s, 10m or 1h", param, ctx)
        return float(found[1]) * _UNITS[found[2]]
