"""The loss curve of a rank, and the objective that the loss measures.

Losses are compared over time only if a rank has one objective. For example, the losses of a GAN's two networks work
against each other. An objective is identified by the modules, the optimizer and the line of the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.statistics import thin
from paceline.explain.model import LossCurve
from paceline.record import layout
from paceline.record.read import read_losses
from paceline.record.run import JsonObject, Rank

_MOST_POINTS = 1500
_MOST_OTHER = 0.1  # largest share of backward passes that may belong to other objectives
_MOVING = 0.5  # from this share of updates with gradient-free forward passes on, a model makes the targets
_LEAST_UPDATES = 8


def loss_curve(rank: Rank, target: float | None) -> LossCurve | None:
    """Return the loss curve of a rank, or None if no loss was recorded."""
    steps = read_losses(rank)
    seen = np.flatnonzero(steps["flags"] & layout.FLAG_LOSS)
    if not len(seen):
        return None
    numbers, values = steps["index"][seen], steps["loss"][seen].astype(np.float64)
    seconds = np.cumsum(steps["wall_s"], dtype=np.float64)[seen]
    samples = np.cumsum(np.nan_to_num(steps["samples"]), dtype=np.float64)[seen]
    del steps, seen  # these arrays are large for a long run
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
    """Return the step, seconds and samples at which the running median of five losses first reached the target."""
    if target is None or not len(values):
        return None
    window = min(5, len(values))
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(values, window), axis=1)
    below = np.flatnonzero(smooth <= target)
    if not len(below):
        return None
    at = int(below[0]) + window - 1
    return {"step": float(steps[at]), "seconds": float(seconds[at]), "samples": float(samples[at])}


# ------------------------------------------------------------------------------------------------------------ objective


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The only objective of a rank.

    Attributes:
        modules: The classes of the modules in the forward pass.
        line: The line of the backward pass, or None if no stack was sampled.
        fixed: Whether the target of the loss stays the same: each backward pass has one forward pass with gradients,
            and there are no forward passes without gradients. A target network, a teacher, or a model that makes its
            own targets changes the objective, so the loss may rise.
    """

    modules: Sequence[str]
    line: str | None
    fixed: bool


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """The number of gradient exchanges of one module per optimizer update."""

    module: str
    updates: int
    per_update: float


def single_objective(rank: Rank) -> Objective | None:
    """Return the objective of a rank, or None if the rank has several or the record does not contain it."""
    told: JsonObject = rank.summary.get("training") or {}
    entries = told.get("objectives") or ()
    counts: Counter[tuple[object, ...]] = Counter()
    for one in entries:
        counts[(tuple(one["module_ids"]), one["optimizer"])] += int(one["backwards"])
    if not counts or not told.get("updates"):
        return None
    kind, most = counts.most_common(1)[0]
    own = [one for one in entries if (tuple(one["module_ids"]), one["optimizer"]) == kind]
    lines = {tuple(one["lines"]) for one in own if one["lines"]}
    if most < (1 - _MOST_OTHER) * int(told["backwards"]) or len(lines) > 1:
        return None
    forwards, backwards = int(told["forwards"]), max(1, int(told["backwards"]))
    free = int(told["updates_with_gradient_free_forwards"]) / int(told["updates"])
    line = next((one[0] for one in lines if one), None)
    return Objective(modules=own[0]["modules"], line=line, fixed=forwards <= 1.1 * backwards and free < _MOVING)


def exchanges_of(rank: Rank) -> Exchanges | None:
    """Return the exchanges of the module that exchanges gradients most often per update, or None if unknown."""
    told: JsonObject = rank.summary.get("training") or {}
    found = [
        Exchanges(module=one["module"], updates=one["updates"], per_update=one["exchanges"] / one["updates"])
        for one in told.get("exchanges") or ()
        if one["updates"] >= _LEAST_UPDATES
    ]
    return max(found, key=lambda one: one.per_update, default=None)
