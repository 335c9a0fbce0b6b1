"""How large should a batch be? What fits, what is fastest a sample, and past what size more samples stop paying.

With |g|^2 the squared length of a gradient of B samples, G the true gradient and S the covariance of one sample's,

    E |g_B|^2 = |G|^2 + tr(S) / B,      B_noise = tr(S) / |G|^2,      steps to a loss ~ 1 + B_noise / B

(McCandlish, Kaplan, Amodei and others, "An empirical model of large-batch training", 2018). The gradient of one step
and the mean of k steps' gradients are two sizes of batch, from which both terms follow. Far below B_noise, twice the
samples need half the steps; far above it they need as many as before. So a step of B samples makes as much progress as

    (1 + B_noise / B_0) / (1 + B_noise / B)

steps of B_0 samples, and the time to a loss is its time divided by that. The estimate changes as training goes on (it
mostly grows), knows nothing of generalisation, and holds for a learning rate that fits each size; hence semantic.

Learning rate: with B / B_0 = c, times c for SGD (Goyal and others, 2017), times sqrt(c) for Adam and its kin
(Malladi and others, "On the SDEs and scaling rules for adaptive gradient algorithms", 2022).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.core.statistics import Floats, Interval
from paceline.improve.child.noise import FOLDER, WINDOW

_RESAMPLED = 400
_FEWEST_WINDOWS = 6
_LINEAR = ("SGD", "ASGD", "Rprop")


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size of batch, tried."""

    samples: int  # of a rank
    progress: float  # that a step makes towards the same loss, in steps of the present size
    learning_rate: float  # factor on what the program sets
    step_s: float | None = None  # None: it did not run
    peak_bytes: float | None = None
    why_not: str | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second; None where it does not run."""
        return None if self.step_s is None else self.samples / self.step_s

    @property
    def loss_s(self) -> float | None:
        """Seconds for the progress of one step of the present size."""
        return None if self.step_s is None else self.step_s / self.progress


@dataclass(frozen=True, kw_only=True)
class BatchStudy:
    """The sizes that were tried; the first is the present one."""

    noise: Interval | None  # B_noise, in samples; None where it could not be measured
    why: str  # how it was measured, or why it could not be
    rule: str  # of the learning rate
    sizes: Sequence[Size]

    @property
    def largest(self) -> Size | None:
        """The largest that ran; None where none did."""
        return max(self._ran, key=lambda s: s.samples, default=None)

    @property
    def fastest(self) -> Size | None:
        """The one with the most samples a second."""
        return max(self._ran, key=lambda s: s.samples_per_s or 0.0, default=None)

    @property
    def soonest(self) -> Size | None:
        """The one that is expected at the same loss first."""
        return min(self._ran, key=lambda s: s.loss_s or math.inf, default=None)

    @property
    def _ran(self) -> list[Size]:
        return [size for size in self.sizes if size.step_s is not None]


def noise_scale(windows: Sequence[tuple[float, float]], batch: float, k: int = WINDOW) -> Interval | None:
    """Return B_noise in samples with its 95% bootstrap interval; infinite where gradients are all noise.

    Args:
        windows: For each window the mean of |g|^2 over its k steps, and |mean of the k gradients|^2.
        batch: Samples of a step.
        k: Steps of a window.
    """
    found = np.asarray(windows, dtype=np.float64).reshape(-1, 2)
    found = found[np.isfinite(found).all(axis=1)]
    if len(found) < _FEWEST_WINDOWS:
        return None
    draws = np.random.default_rng(0).integers(0, len(found), (_RESAMPLED, len(found)))
    resampled = [_scale(found[draw], batch, k) for draw in draws]
    value = _scale(found, batch, k)
    low, high = (float(np.quantile(resampled, q, method="nearest")) for q in (0.025, 0.975))
    return Interval(value=value, low=min(low, value), high=max(high, value), count=len(found))


def _scale(windows: Floats, batch: float, k: int) -> float:
    single, mean = windows.mean(axis=0)
    noise, signal = k * (single - mean), k * mean - single  # each times (k - 1): tr(S) / B and |G|^2
    if signal <= 0:
        return math.inf
    return max(0.0, float(batch * noise / signal))


def progress(noise: float, before: float, after: float) -> float:
    """Return how much progress a step of `after` samples makes, in steps of `before` samples."""
    if math.isinf(noise):
        return after / before
    return (1 + noise / before) / (1 + noise / after)


def rate_factor(optimizer: str, factor: float) -> float:
    """Return the factor on the learning rate for a batch that is larger by a factor."""
    return factor if optimizer in _LINEAR else math.sqrt(factor)


def rule_of(optimizer: str) -> str:
    """Say by which rule the learning rate follows the batch."""
    return (
        f"{optimizer}: the learning rate is multiplied by {'c' if optimizer in _LINEAR else 'sqrt(c)'} if the "
        f"batch size is multiplied by c"
    )


def read_windows(folder: Path) -> tuple[list[tuple[float, float]], int]:
    """Return the windows that the first rank of a trial measured, and how many optimizers it has."""
    for path in sorted((folder / FOLDER).glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        return [(a, b) for a, b in found["windows"]], found["optimizers"]
    return [], 0
