"""Confidence intervals of medians, means, ratios, slopes and proportions, quantiles of Student's t, and robust trends.

Steps of a run are not independent: a slow disk stays slow for a while, and two workers can make every second step wait.
The interval of a mean therefore comes from batch means. The series is cut into k blocks of equal length, so that the
means of the blocks are nearly independent. Student's t with k - 1 degrees of freedom gives the interval (Law,
*Simulation Modeling and Analysis*, 9.5.3). k is the first of 20, 10 and 5 at which the correlation between neighbouring
block means is below 0.1.

The ratio of two series is computed step by step. An event in the same step of both series, such as an evaluation or a
long sequence, therefore cancels. With r = mean(after) / mean(before), the interval of r comes from the interval of
mean(after - r * before).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_Z_975 = 1.959964  # 97.5% quantile of the normal distribution
_BLOCKS = (20, 10, 5)
_LEAST_BLOCK = 2
_STILL_CORRELATED = 0.1


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A quantity, its confidence interval (95% unless said otherwise) and the number of observations."""

    value: float
    low: float
    high: float
    count: int


# ------------------------------------------------------------------------------------------------ Student's t


def t_quantile(normal_quantile: float, freedom: float) -> float:
    """Return a quantile of Student's t by its expansion in 1/freedom (Abramowitz and Stegun, 26.7.5).

    Args:
        normal_quantile: The same quantile of the normal distribution, such as 1.96 for 97.5%.
        freedom: Degrees of freedom. At 1 and 2 the exact formula is used; at 3 and 97.5% the expansion is 0.4% too low.
    """
    z = normal_quantile
    share = (1 + math.erf(z / math.sqrt(2))) / 2
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def t_975(freedom: float) -> float:
    """Return the 97.5% quantile of Student's t: half the width of a 95% interval, in standard errors."""
    return t_quantile(_Z_975, freedom)


# -------------------------------------------------------------------------------------------------- intervals


def median_interval(values: Floats, level_z: float = 1.96) -> Interval | None:
    """Return the median and its distribution-free 95% interval (binomial order statistics); None for no values.

    With fewer than six values, no two order statistics reach 95%. The interval is then the whole range of the values.
    """
    count = len(values)
    if not count:
        return None
    ordered = np.sort(values)
    half = level_z * math.sqrt(count) / 2
    low = max(0, math.floor((count - 1) / 2 - half))
    high = min(count - 1, math.ceil((count - 1) / 2 + half))
    return Interval(value=float(np.median(ordered)), low=float(ordered[low]), high=float(ordered[high]), count=count)


def half_width(values: Floats) -> float:
    """Return t s / sqrt(n), half the width of the 95% interval of the mean of n independent values (n at least 2)."""
    return t_975(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def mean_interval(values: Floats) -> Interval:
    """Return the mean of at least five values with its 95% interval. The values are in the order of measurement."""
    mean, half = float(values.mean()), half_width(_block_means(values))
    return Interval(value=mean, low=mean - half, high=mean + half, count=len(values))


def paired_ratio(before: Floats, after: Floats) -> Interval:
    """Return mean(after) / mean(before) with its 95% interval.

    Args:
        before: One value per step.
        after: The values of the same steps. Both means are above zero.
    """
    first, second = float(before.mean()), float(after.mean())
    ratio = second / first
    half = half_width(_block_means(after - ratio * before)) / second
    return Interval(value=ratio, low=ratio * math.exp(-half), high=ratio * math.exp(half), count=len(before))


def _block_means(values: Floats) -> Floats:
    """Return block means for the largest number of blocks whose neighbouring means are nearly uncorrelated."""
    fitting = [k for k in _BLOCKS if len(values) >= k * _LEAST_BLOCK] or [_BLOCKS[-1]]
    for number in fitting:
        means = np.array([block.mean() for block in np.array_split(values, number)])
        if _neighbour_correlation(means) < _STILL_CORRELATED:
            break
    return means


def _neighbour_correlation(values: Floats) -> float:
    off = values - values.mean()
    whole = float((off * off).sum())
    return float((off[1:] * off[:-1]).sum()) / whole if whole > 0 else 0.0


def slope_interval(x: Floats, y: Floats) -> Interval | None:
    """Return the least-squares slope of y over x with its 95% interval (Student's t); None for fewer than four points.

    With 16 or more points, the slope is fitted to the means of eight blocks, because neighbouring points may be
    dependent.
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


def proportion_interval(count: int, total: int) -> tuple[float, float]:
    """Return the 95% interval (Wilson) of the proportion ``count / total``."""
    z, part = 1.96, count / total
    middle = (part + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(part * (1 - part) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - half), min(1.0, middle + half)


# ----------------------------------------------------------------------------------------------------- trends


def warmup_length(walls: Floats) -> int:
    """Return the number of slow warm-up steps at the start.

    Warm-up ends at the first three steps in a row that take at most 1.5 times the median of the later half. At most a
    third of the steps is warm-up. If there are four or more steps, at least one is warm-up.
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
    """Return (median of the last quarter / median of the first quarter, Kendall's tau of eight block medians).

    For fewer than 16 values the result is (1.0, 0.0).
    """
    if len(values) < 16:
        return 1.0, 0.0
    quarter = len(values) // 4
    first = float(np.median(values[:quarter]))
    blocks = np.array([np.median(block) for block in np.array_split(values, 8)])
    signs = [np.sign(blocks[j] - blocks[i]) for i in range(8) for j in range(i + 1, 8)]
    return (float(np.median(values[-quarter:])) / first if first > 0 else 1.0), float(np.mean(signs))


def thin(values: Floats, most: int) -> NDArray[np.intp]:
    """Return the indices of at most ``most`` evenly spaced values, including the first and the last."""
    if len(values) <= most:
        return np.arange(len(values))
    return np.unique(np.linspace(0, len(values) - 1, most).astype(np.intp))
