"""Interpolation of measured times: a weighted plane through the nearest measured sizes, in logarithms.

    log(seconds / work) = a + b . (log sizes - log requested sizes)      weights 1 / distance²; b is shrunk towards 0

At a measured size the result is the measured time. Far outside the measured range the efficiency stays near
that of the nearest measured sizes. The time of messages follows a latency and a bandwidth (Hockney 1994):
seconds = latency + bytes / bandwidth, fitted by least squares of relative errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_NEAR = 0.02  # squared distance, in powers of two, within which a point counts as the requested one
_DRAWN = 0.15  # how strongly slopes are shrunk towards 0, as a share of the total weight of the points


@dataclass(frozen=True)
class CostInterpolation:
    """The measured points of one operator family, between which times are interpolated.

    `sizes` has log2 of the sizes, of shape (points, sizes); `rates` has log2 of seconds / work, of shape (points,).
    """

    sizes: Floats
    rates: Floats

    def seconds(self, sizes: Sequence[float], work: float) -> float:
        """Return the interpolated seconds of an operator.

        Args:
            sizes: The sizes of the operator, in the order of the measured sizes.
            work: The FLOPs or bytes of the operator, as in `operators.OperatorKind`.
        """
        away = self.sizes - np.log2(np.asarray(sizes, dtype=np.float64))
        squared = (away**2).sum(axis=1)
        nearest = np.argsort(squared, kind="stable")[: 2 * away.shape[1] + 4]
        away, rates = away[nearest], self.rates[nearest]
        weights = 1.0 / (squared[nearest] + _NEAR) ** 1.5
        return float(work * 2.0 ** _plane_at_0(away, rates, weights))


def _plane_at_0(away: Floats, rates: Floats, weights: Floats) -> float:
    """Return the value at `away` = 0 of a weighted plane that is fitted to the points.

    The value is at most half of the range of `rates` outside this range.
    """
    design = np.column_stack([np.ones(len(rates)), away])
    drawn = np.diag([0.0, *([_DRAWN * float(weights.sum())] * away.shape[1])])
    left = design.T @ (weights[:, None] * design) + drawn + 1e-12 * np.eye(design.shape[1])
    height = float(np.linalg.solve(left, design.T @ (weights * rates))[0])
    low, high = float(rates.min()), float(rates.max())
    slack = 0.5 * (high - low)
    return min(max(height, low - slack), high + slack)


def interpolation_of(points: Sequence[tuple[Sequence[float], float, float]]) -> CostInterpolation:
    """Create the interpolation of measured points.

    Args:
        points: The sizes, the seconds and the work of each measured operator.
    """
    sizes = np.log2(np.array([point[0] for point in points], dtype=np.float64))
    rates = np.log2(np.array([seconds / work for _, seconds, work in points], dtype=np.float64))
    return CostInterpolation(sizes=sizes, rates=rates)


@dataclass(frozen=True, kw_only=True)
class MessageTime:
    """The latency in seconds and the bandwidth in bytes/s of messages."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, sent_bytes: float) -> float:
        """Return the seconds that a message with this many bytes takes."""
        return self.latency_s + sent_bytes / self.bytes_per_s


def fit_message_time(points: Sequence[tuple[float, float]]) -> MessageTime:
    """Fit latency and bandwidth to measured messages (bytes, seconds) by least squares of relative errors.

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
    """Return the fitted seconds per unit of each part of a step, at least 0.

    For each whole model, the units of its parts times these rates should add up to its remaining time.

    Args:
        parts: Units of each part in each model, of shape (models, parts).
        rests: Remaining seconds of each model, which the parts must explain.
        wholes: Seconds of each model, to which errors are relative.
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
