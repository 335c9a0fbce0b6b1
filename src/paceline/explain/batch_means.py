"""How sure is the mean of numbers that depend on each other? The method of batch means, on pairs.

Steps of a run are not independent: a slow disk stays slow for a while, two workers make every second step wait.
The series is cut into k stretches of equal length, longer than such memory lasts; their means are nearly independent,
and Student's t with k - 1 degrees of freedom gives the interval of the whole mean (Law, *Simulation Modeling and
Analysis*, 9.5.3). k is 20, 10 or 5: the first at which neighbouring means hardly correlate (below 0.1).

Two series are taken step by step, so that what happens in the same steps of both (an evaluation, a long sequence)
cancels. With r = mean(after) / mean(before), the interval of r comes from that of mean(after - r * before).
"""

from __future__ import annotations

import math

import numpy as np

from paceline.explain.model import Interval
from paceline.explain.statistics import Floats, t_975

_STRETCHES = (20, 10, 5)
_LEAST_STRETCH = 2
_STILL_CORRELATED = 0.1


def mean_interval(values: Floats) -> Interval:
    """Return the mean of at least five values, in the order they were taken, with its 95% interval."""
    mean, half = float(values.mean()), _half_width(values)
    return Interval(value=mean, low=mean - half, high=mean + half, count=len(values))


def paired_ratio(before: Floats, after: Floats) -> Interval:
    """Return mean(after) / mean(before) with its 95% interval, for series step by step with means above zero."""
    first, second = float(before.mean()), float(after.mean())
    ratio = second / first
    half = _half_width(after - ratio * before) / second
    return Interval(value=ratio, low=ratio * math.exp(-half), high=ratio * math.exp(half), count=len(before))


def _half_width(values: Floats) -> float:
    means = _stretch_means(values)
    freedom = len(means) - 1
    return t_975(freedom) * math.sqrt(float(means.var(ddof=1)) / len(means))


def _stretch_means(values: Floats) -> Floats:
    """Return the means of the most stretches that no longer depend on each other."""
    fitting = [k for k in _STRETCHES if len(values) >= k * _LEAST_STRETCH] or [_STRETCHES[-1]]
    for number in fitting:
        means = np.array([stretch.mean() for stretch in np.array_split(values, number)])
        if _neighbour_correlation(means) < _STILL_CORRELATED:
            break
    return means


def _neighbour_correlation(values: Floats) -> float:
    off = values - values.mean()
    whole = float((off * off).sum())
    return float((off[1:] * off[:-1]).sum()) / whole if whole > 0 else 0.0
