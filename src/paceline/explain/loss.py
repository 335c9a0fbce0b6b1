"""How did the loss go? Against steps, seconds and samples; where it first was no number; when it reached a target."""

from __future__ import annotations

import numpy as np

from paceline.core.statistics import thin
from paceline.explain.model import LossCurve
from paceline.record import layout
from paceline.record.read import read_losses
from paceline.record.run import Rank

_MOST_POINTS = 1500


def loss_curve(rank: Rank, target: float | None) -> LossCurve | None:
    """Return the loss curve of a rank, or None when no loss was seen."""
    steps = read_losses(rank)
    seen = np.flatnonzero(steps["flags"] & layout.FLAG_LOSS)
    if not len(seen):
        return None
    numbers, values = steps["index"][seen], steps["loss"][seen].astype(np.float64)
    seconds = np.cumsum(steps["wall_s"], dtype=np.float64)[seen]
    samples = np.cumsum(np.nan_to_num(steps["samples"]), dtype=np.float64)[seen]
    del steps, seen  # of a long run they are large
    finite = np.isfinite(values)
    ends = max(1, min(20, len(values) // 10))
    good = values[finite]
    picked = thin(values, _MOST_POINTS)
    return LossCurve(
        steps=[int(i) for i in numbers[picked]],
        values=[float(v) for v in values[picked]],
        seconds=[float(v) for v in seconds[picked]],
        samples=[float(v) for v in samples[picked]],
        first=float(np.median(good[:ends])) if len(good) else None,
        last=float(np.median(good[-ends:])) if finite[-1] else None,
        finite=bool(finite.all()),
        averaged=min(ends, max(1, len(good))),
        first_bad_step=None if finite.all() else int(numbers[np.argmin(finite)]),
        target=target,
        target_reached=_reached(values, numbers, seconds, samples, target),
    )


def _reached(
    values: np.ndarray, steps: np.ndarray, seconds: np.ndarray, samples: np.ndarray, target: float | None
) -> dict[str, float] | None:
    """Return when the running median of five losses first was at or below the target."""
    if target is None or not len(values):
        return None
    window = min(5, len(values))
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(values, window), axis=1)
    below = np.flatnonzero(smooth <= target)
    if not len(below):
        return None
    at = int(below[0]) + window - 1
    return {"step": float(steps[at]), "seconds": float(seconds[at]), "samples": float(samples[at])}
