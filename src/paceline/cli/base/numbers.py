"""Numbers as options take them: finite ones. A price of `nan` makes every figure that follows from it `nan`."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteFloat(click.FloatRange):
    """A number that is neither infinite nor NaN, within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number; give a number such as 2.5", param, ctx)
        return number
