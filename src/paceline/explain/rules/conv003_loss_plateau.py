"""CONV003: has the loss stopped improving?"""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain.facts import Facts
from paceline.explain.model import Evidence, Finding, LossCurve, Remedy
from paceline.explain.rules import Rule

_LEAST = 60
_IMPROVED = 0.05  # of the first loss, so that there was something to stop
_FLAT = 0.01
_LEAST_NEVER = 120  # losses that must agree before a loss is said never to have fallen

PAGE = """
## What it means

The loss fell at first and then stopped: the steps since then bought nothing. It may have converged, or the
learning rate may have run out.

## How it is decided

At least 60 losses; the loss first fell by at least 5 %; over the last half of the run the medians of its four
parts differ by less than 1 % of the first loss and less than the scatter between neighbouring losses. A loss that
never fell is told from 120 losses on, with low confidence: the medians of its four quarters differ by less than 1 %
of the first loss. The rate may be too low, labels may be mixed up, or there is nothing to be learnt (random data).

## What helps

`optimizer.schedule`: change the learning rate (decay it, or restart it). `run.stop_early`: stop when the loss
has not improved for a while.
"""


def check(facts: Facts) -> Finding | None:
    """Decide CONV003."""
    loss = facts.loss
    since = None if loss is None else _flat_since(loss)
    if loss is None or since is None:
        return None
    text = (
        f"the loss went from {loss.first:.4g} to {loss.last:.4g} and has not improved since step {since} "
        f"({len(loss.values)} points)"
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
        ranks=[facts.first.record.rank],
        evidence=[
            Evidence(text=text, value=float(since), unit="step"),
            Evidence(
                text=f"{units.percent(share)} of the time was spent after that step", value=share, unit="share of time"
            ),
        ],
        remedies=[
            Remedy(id="optimizer.schedule", safety="semantic", change="decay or restart the learning rate"),
            Remedy(id="run.stop_early", safety="semantic", change="stop when the loss has not improved for a while"),
        ],
        summary="the loss has not improved at all" if never else f"the loss has not improved since step {since}",
    )


def _flat_since(loss: LossCurve) -> int | None:
    """Return the step from which the loss is flat, or None."""
    values = np.array(loss.values)
    if len(values) < _LEAST or not loss.finite or loss.first is None or loss.last is None:
        return None
    if np.ptp(values) == 0 or (len(values) >= _LEAST_NEVER and _spread(values) < _FLAT * abs(loss.first)):
        return int(loss.steps[0])
    half = values[len(values) // 2 :]
    parts = _medians(half)
    scatter = float(np.median(np.abs(np.diff(half))))
    flat = max(parts) - min(parts) < max(_FLAT * abs(loss.first), 0.5 * scatter) or parts[-1] >= parts[0]
    if not flat or loss.first - loss.last < _IMPROVED * abs(loss.first):
        return None
    return int(loss.steps[len(values) // 2])


def _medians(values: np.ndarray) -> list[float]:
    return [float(np.median(part)) for part in np.array_split(values, 4)]


def _spread(values: np.ndarray) -> float:
    medians = _medians(values)
    return max(medians) - min(medians)


RULE = Rule(code="CONV003", name="loss-plateau", page=PAGE, check=check)
