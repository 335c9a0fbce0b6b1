"""Interpolation of measured times: a weighted plane through the nearest measured sizes, in logarithms.

    log(seconds / work) = a + b . (log sizes - log sizes asked for)      weights 1 / distance², b drawn to 0

A measured size gives its measured time, and far outside the measured range the efficiency stays near that of the edge.
Messages follow a latency and a bandwidth (Hockney 1994): seconds = latency + bytes / bandwidth, by least squares of
relative errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_NEAR = 0.02  # squared distance, in powers of two, within which a point counts as the requested one
_DRAWN = 0.15  # how strongly slopes are drawn to 0, as a share of the points' own weight


@dataclass(frozen=True)
class CostInterpolation:
    """Measured points of an operator family: log2 of sizes, (points, sizes), and of seconds / work, (points,)."""

    sizes: Floats
    rates: Floats

    def seconds(self, sizes: Sequence[float], work: float) -> float:
        """Return the interpolated time of some work at some sizes."""
        away = self.sizes - np.log2(np.asarray(sizes, dtype=np.float64))
        squared = (away**2).sum(axis=1)
        nearest = np.argsort(squared, kind="stable")[: 2 * away.shape[1] + 4]
        away, rates = away[nearest], self.rates[nearest]
        weights = 1.0 / (squared[nearest] + _NEAR) ** 1.5
        return float(work * 2.0 ** _plane_at_0(away, rates, weights))


def _plane_at_0(away: Floats, rates: Floats, weights: Floats) -> float:
    """Return the height of a weighted plane at `away` = 0, at most half of the points' range beyond the points."""
    design = np.column_stack([np.ones(len(rates)), away])
    drawn = np.diag([0.0, *([_DRAWN * float(weights.sum())] * away.shape[1])])
    left = design.T @ (weights[:, None] * design) + drawn + 1e-12 * np.eye(design.shape[1])
    height = float(np.linalg.solve(left, design.T @ (weights * rates))[0])
    low, high = float(rates.min()), float(rates.max())
    slack = 0.5 * (high - low)
    return min(max(height, low - slack), high + slack)


def interpolation_of(points: Sequence[tuple[Sequence[float], float, float]]) -> CostInterpolation:
    """Return the interpolation of measured points from the sizes, seconds and work of each point."""
    sizes = np.log2(np.array([point[0] for point in points], dtype=np.float64))
    rates = np.log2(np.array([seconds / work for _, seconds, work in points], dtype=np.float64))
    return CostInterpolation(sizes=sizes, rates=rates)


@dataclass(frozen=True, kw_only=True)
class MessageTime:
    """Latency and bandwidth of messages."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, sent_bytes: float) -> float:
        """Return the time of a message."""
        return self.latency_s + sent_bytes / self.bytes_per_s


def fit_message_time(points: Sequence[tuple[float, float]]) -> MessageTime:
    """Fit latency and bandwidth to messages (bytes, seconds), with equal weight for relative errors.

    Raises:
        ValueError: There are fewer than two message sizes.
    """
    if len({sent for sent, _ in points}) < 2:
        raise ValueError(
            f"{len(points)} messages of one size are not enough for a linear fit; measure at least two message sizes"
        )
    sent, seconds = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    found = np.linalg.lstsq(np.column_stack([1 / seconds, sent / seconds]), np.ones(len(sent)), rcond=None)[0]
    slope = max(float(found[1]), 1e-15)
    return MessageTime(latency_s=max(float(found[0]), float(seconds.min()) * 1e-3), bytes_per_s=1 / slope)


def fit_part_rates(parts: Sequence[Sequence[float]], rests: Sequence[float], wholes: Sequence[float]) -> list[float]:
    """Return the time per unit of each part, never negative, so that the parts add up to the rests of some wholes.

    Args:
        parts: Amount of each part in each whole, (wholes, parts).
        rests: Time of each whole that the parts must explain.
        wholes: Time of each whole; errors count relative to it.
    """
    scale = np.array(wholes, dtype=np.float64)
    table, target = np.array(parts, dtype=np.float64) / scale[:, None], np.array(rests, dtype=np.float64) / scale
    kept = list(range(table.shape[1]))
    while kept:  # drop negative rates and solve again
        found = np.linalg.lstsq(table[:, kept], target, rcond=None)[0]
        if (found >= 0).all():
            return [float(found[kept.index(each)]) if each in kept else 0.0 for each in range(table.shape[1])]
        kept.pop(int(np.argmin(found)))
    return [0.0] * table.shape[1]
