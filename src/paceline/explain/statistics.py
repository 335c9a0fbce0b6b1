"""Which statistics hold on few and noisy numbers? Medians with order-statistic intervals, and robust trends."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paceline.explain.model import Interval

Floats = NDArray[np.float64]


def median_interval(values: Floats, level_z: float = 1.96) -> Interval | None:
    """Return the median and its distribution-free 95% interval (binomial order statistics); None for no values.

    With fewer than six values no two order statistics reach 95%, so the interval is their whole range.
    """
    count = len(values)
    if not count:
        return None
    ordered = np.sort(values)
    half = level_z * math.sqrt(count) / 2
    low = max(0, math.floor((count - 1) / 2 - half))
    high = min(count - 1, math.ceil((count - 1) / 2 + half))
    return Interval(value=float(np.median(ordered)), low=float(ordered[low]), high=float(ordered[high]), count=count)


def warmup_length(walls: Floats) -> int:
    """Return how many steps at the start are unlike the rest: until three in a row are no slower than 1.5 medians.

    The median is that of the later half; at most a third of the steps is warm-up, at least one from four on.
    """
    count = len(walls)
    if count < 4:
        return min(1, max(0, count - 1))
    usual = 1.5 * float(np.median(walls[count // 2 :]))
    most = max(1, count // 3)
    for start in range(1, most):
        if np.all(walls[start : start + 3] <= usual):
            return start
    return most if np.median(walls[:most]) > usual else 1


def drift(values: Floats) -> tuple[float, float]:
    """Return the ratio of the last quarter's median to the first's, and Kendall's tau of eight block medians."""
    if len(values) < 16:
        return 1.0, 0.0
    quarter = len(values) // 4
    first = float(np.median(values[:quarter]))
    blocks = np.array([np.median(block) for block in np.array_split(values, 8)])
    signs = [np.sign(blocks[j] - blocks[i]) for i in range(8) for j in range(i + 1, 8)]
    return (float(np.median(values[-quarter:])) / first if first > 0 else 1.0), float(np.mean(signs))


def slope_interval(x: Floats, y: Floats) -> Interval | None:
    """Return the least-squares slope of y over x with its 95% interval (Student's t); None for fewer than four points.

    From 16 points on, the means of eight blocks are fitted, so that neighboring points need not be independent.
    """
    count = len(x)
    if count < 4 or float(np.ptp(x)) == 0:
        return None
    if count >= 16:
        x = np.array([block.mean() for block in np.array_split(x, 8)])
        y = np.array([block.mean() for block in np.array_split(y, 8)])
    off = x - x.mean()
    squares = float((off * off).sum())
    value = float((off * y).sum()) / squares
    residual = y - y.mean() - value * off
    freedom = len(x) - 2
    half = t_975(freedom) * math.sqrt(float((residual * residual).sum()) / freedom / squares)
    return Interval(value=value, low=value - half, high=value + half, count=count)


def t_975(freedom: float) -> float:
    """Return Student's t at 97.5% by its expansion in 1/freedom (Abramowitz and Stegun, 26.7.5; 1.5% off at 2)."""
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def thin(values: Floats, most: int) -> NDArray[np.intp]:
    """Return the indices of at most so many evenly spread values, first and last among them."""
    if len(values) <= most:
        return np.arange(len(values))
    return np.unique(np.linspace(0, len(values) - 1, most).astype(np.intp))
