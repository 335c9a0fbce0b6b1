"""CONV003: the loss has stopped improving."""

from __future__ import annotations

import numpy as np

from paceline.core import units
from paceline.core.statistics import Floats, slope_interval
from paceline.explain.analysis.loss import single_objective
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, LossCurve, Remedy
from paceline.explain.rules import Rule

_LEAST = 60
_IMPROVED = 0.05  # least fall of the loss, as a share of its first value
_CONVERGED = 0.9  # a loss that fell by this share of its first value has converged
_STILL = 0.4  # the loss may still fall if the second half may have this share of the first half's fall
_FLAT = 0.01
_LEAST_NEVER = 120  # least number of losses for the report that the loss never fell

PAGE = """
## What it means

The loss fell at first and then stopped falling. Either training has converged, or the loss cannot fall further with the
current learning rate. Paceline cannot tell these two cases apart. If training has converged, stopping earlier saves the
rest of the training time.

## How it is detected

Paceline looks at the loss only if the program has one objective that does not move (see CONV002).

Paceline reports `loss-plateau` if it recorded at least 60 losses, if the loss first fell by at least 5%, and if the
loss hardly changed during the second half of the run. To test the second half, Paceline divides it into four equal
parts. The median losses of the four parts must differ by less than 1% of the first loss, or by less than half of the
noise between neighboring losses. A noisy loss may still fall although this test holds. Paceline therefore also fits a
line to the second half: within the 95% confidence interval of its slope, the loss must have fallen by less than 40% of
what it fell in the first half. A loss that fell by at least 90% of its first value counts as converged, and is not
reported.

If the loss never fell, Paceline needs at least 120 losses, and the finding has low confidence. In that case, Paceline
divides the whole run into four equal parts, and the median losses of the four parts must differ by less than 1% of the
first loss. If the loss never fell, the learning rate may be too low, labels may be assigned to the wrong samples, or
the data may be random.

## What helps

- `optimizer.schedule`: lower the learning rate, or restart the learning-rate schedule.
- `run.early_stopping`: stop training when the loss has not improved for some time.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding CONV003, or None if it does not apply."""
    loss = analysis.loss
    objective = single_objective(analysis.first.record)
    since = None if loss is None or objective is None or not objective.fixed else _flat_since(loss)
    if loss is None or since is None:
        return None
    text = (
        f"the loss changed from {loss.first:.4g} to {loss.last:.4g} and has not improved since step {since} "
        f"({len(loss.values)} losses)"
    )
    never = since == loss.steps[0]
    share = (loss.seconds[-1] - loss.seconds[loss.steps.index(since)]) / max(loss.seconds[-1], 1e-9)
    return Finding(
        code="CONV003",
        name="loss-plateau",
        severity="warning",
        confidence="low" if never else "medium",
        time_share=None,
        gain=None,
        ranks=[analysis.first.record.rank],
        evidence=[
            Evidence(text=text, value=float(since), unit="step"),
            Evidence(
                text=f"{units.percent(share)} of the training time was spent after step {since}",
                value=share,
                unit="share of time",
            ),
        ],
        remedies=[
            Remedy(
                id="optimizer.schedule",
                safety="semantic",
                change="lower the learning rate, or restart the learning-rate schedule",
            ),
            Remedy(
                id="run.early_stopping",
                safety="semantic",
                change="stop training when the loss has not improved for some time",
            ),
        ],
        summary="the loss has not improved during the whole run"
        if never
        else f"the loss has not improved since step {since}: training has converged, or needs another learning rate",
    )


def _flat_since(loss: LossCurve) -> int | None:
    """Return the first step of the flat part of the loss curve, or None if the loss still falls or has converged."""
    values = np.array(loss.values)
    if len(values) < _LEAST or not loss.finite or loss.first is None or loss.last is None:
        return None
    if np.ptp(values) == 0 or (len(values) >= _LEAST_NEVER and _spread(values) < _FLAT * abs(loss.first)):
        return int(loss.steps[0])
    half = values[len(values) // 2 :]
    parts = _medians(half)
    scatter = float(np.median(np.abs(np.diff(half))))
    flat = max(parts) - min(parts) < max(_FLAT * abs(loss.first), 0.5 * scatter) or parts[-1] >= parts[0]
    fell = loss.first - loss.last
    if (
        not flat
        or _may_still_fall(half, loss.first)
        or fell < _IMPROVED * abs(loss.first)
        or 0 <= parts[-1] <= (1 - _CONVERGED) * loss.first
    ):
        return None
    return int(loss.steps[len(values) // 2])


def _may_still_fall(half: Floats, first: float) -> bool:
    """Return whether the loss may still fall.

    This is so if the 95% interval of the slope in the second half of the losses allows a fall that is a large part of
    the fall in the first half.
    """
    slope = slope_interval(np.arange(len(half), dtype=np.float64), half)
    if slope is None:
        return False
    begin = float(half.mean()) - slope.value * (len(half) - 1) / 2
    return -slope.low * len(half) > _STILL * (first - begin)


def _medians(values: np.ndarray) -> list[float]:
    return [float(np.median(part)) for part in np.array_split(values, 4)]


def _spread(values: np.ndarray) -> float:
    medians = _medians(values)
    return max(medians) - min(medians)


RULE = Rule(code="CONV003", name="loss-plateau", page=PAGE, check=check)
