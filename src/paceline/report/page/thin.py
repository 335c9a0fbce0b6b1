"""Reduces the number of points in a drawing, keeping every extreme value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.explain.model import TimelinePoint
from paceline.record.layout import PHASES


def merged(points: Sequence[TimelinePoint], most: int) -> list[TimelinePoint]:
    """Merge neighbouring points of a timeline until at most ``most`` are left.

    Values become time-weighted means; the slowest step of merged points is kept.
    """
    width = max(1, math.ceil(len(points) / most))
    return [_joined(points[i : i + width]) for i in range(0, len(points), width)]


def _joined(points: Sequence[TimelinePoint]) -> TimelinePoint:
    if len(points) == 1:
        return points[0]
    steps = sum(point.steps for point in points)
    times = [point.step_s * point.steps for point in points]
    whole = sum(times)
    return TimelinePoint(
        step=points[0].step,
        seconds=points[0].seconds,
        steps=steps,
        step_s=whole / steps if steps else 0.0,
        slowest_s=max(point.slowest_s for point in points),
        shares=[_mean([point.shares[i] for point in points], times) for i in range(len(PHASES))],
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    whole = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / whole if whole else 0.0


def extremes(values: Sequence[float | None], most: int) -> list[int]:
    """Return the indices of the points to draw: the least and the greatest value of each of ``most / 2`` buckets.

    One missing or non-finite value is kept for each bucket, so that a gap stays visible.
    """
    if len(values) <= most:
        return list(range(len(values)))
    width = math.ceil(len(values) * 2 / most)
    kept: set[int] = {0, len(values) - 1}
    for start in range(0, len(values), width):
        kept |= _kept(values, range(start, min(start + width, len(values))))
    return sorted(kept)


def _kept(values: Sequence[float | None], places: Sequence[int]) -> set[int]:
    known = {i: value for i in places if (value := values[i]) is not None and math.isfinite(value)}
    gaps = [i for i in places if i not in known]
    return {*gaps[:1], *((min(known, key=known.__getitem__), max(known, key=known.__getitem__)) if known else ())}
