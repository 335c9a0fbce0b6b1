"""If predictions had chosen, how much slower than the best would the choice have been? What users feel.

A sweep is the rows of one source with the same model, cluster, sample length and format. Of each, the row that is
predicted fastest per sample is held against the one that was measured fastest per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.plan.predict import Prediction
from paceline.plan.rows import Row

_CLOSE = 0.05


@dataclass(frozen=True, kw_only=True)
class Regret:
    """Over all sweeps of two rows or more; fractions of the best's time, None where there is no sweep."""

    sweeps: int
    within_5_percent: float | None
    median: float | None
    worst: float | None


def regret(pairs: Sequence[tuple[Row, Prediction]]) -> Regret:
    """Compare choices with the best of every sweep."""
    sweeps: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row, found in pairs:
        if row.step_s and found.step_s and not row.out_of_memory:
            batch = row.timed[0].global_batch
            sweeps.setdefault((row.source, row.sweep), []).append((found.step_s / batch, row.step_s / batch))
    losses = [_loss(members) for members in sweeps.values() if len(members) > 1]
    return Regret(
        sweeps=len(losses),
        within_5_percent=sum(loss <= _CLOSE for loss in losses) / len(losses) if losses else None,
        median=median(losses) if losses else None,
        worst=max(losses, default=None),
    )


def _loss(members: list[tuple[float, float]]) -> float:
    """Time of the predicted best over that of the measured best, less one."""
    _, chosen = min(members)
    return chosen / min(measured for _, measured in members) - 1
