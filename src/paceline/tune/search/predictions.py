"""Corrects predicted gains by the results of earlier trials on this machine.

On the log scale, trial i of a remedy was expected by the findings to gain c_i (the middle of their interval) and gained
a_i. With f = log 1.1, a size below which a gain is lost in what a machine does by itself, let

    a_i = beta c_i + e_i,    e_i ~ N(0, s^2 d_i^2),    d_i^2 = c_i^2 + f^2,    beta ~ N(1, s^2 / k)

that is: on this machine a remedy brings a share beta of what the findings expect of it, and errors grow with what is
expected. A slope and not an offset: a remedy that brought half of an expected 8x says little about one of 1.05x. The
posterior mean of beta shrinks towards 1, which is "the findings are right", as if k trials had said so:

    w = sum c_i^2 / d_i^2,    beta = (k + sum a_i c_i / d_i^2) / (k + w)

With an inverse gamma prior on s^2 that weighs as much as m trials, what is next achieved follows Student's t:

    s^2 = (m s_0^2 + sum (a_i - beta c_i)^2 / d_i^2 + k (beta - 1)^2) / (m + n)
    beta c -+ t s d sqrt(1 + c^2 / d^2 / (k + w)),    t = the 90% quantile with m + n degrees of freedom

An interval of the findings, c - h to c + h, is meant to hold four achieved gains in five; s_0 is such that the second
line says the same where there is no trial yet. The interval is never made narrower than beta c -+ |beta| h: other
programs can tell that findings were wrong, not that they are surer about this one. Nor is it made so wide by
a few as to say nothing: with fewer than three trials the findings are left as they are, with fewer than eight the
interval reaches no further than 2 h + f to each side, and beta counts as 2 at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.core.remedies import Safety
from paceline.core.statistics import Interval, t_quantile
from paceline.explain.model import Gain
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import expected
from paceline.tune.search.result import Status, Trial, is_inconclusive

NEWEST = 50  # trials of a remedy that count: programs, versions and machines change
AGREEING = 5  # trials without a gain worth having that it takes to expect none
_FEWEST = 3  # trials below which nothing is corrected
_MANY = 8  # trials that may make an interval as wide as they scatter
_STEEPEST = 2.0  # beta
_WIDEST = 2.0  # times half of the findings' interval, on the log scale
_PRIOR = 1.0  # k
_PRIOR_SPREAD = 2.0  # m
_FLOOR = math.log(1.1)  # f
_Z = 1.2816  # 90% quantile of the normal
_COUNTED = ("kept", "no-win", "undecided")  # what did not train the same is no measure of speed


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a trial."""

    host: str
    device: str  # the kind: a GPU's name, or "cpu"
    torch: str  # version


@dataclass(frozen=True, kw_only=True)
class RecordedTrial:
    """A measured trial in the history file: the predicted and the measured gain."""

    remedy: str
    safety: Safety
    status: Status
    predicted_by_findings: Gain | None
    predicted: Gain | None  # as it was used, after earlier trials had been heard
    achieved: Interval
    machine: Machine
    date: str  # ISO 8601, UTC


def machine_of(context: DiagnosisContext) -> Machine:
    """Return where a program was watched."""
    first = context.facts.first.record
    return Machine(
        host=first.host,
        device=str(first.meta.get("device_name") or first.device),
        torch=str(first.meta.get("torch", "")),
    )


def recorded_trial(trial: Trial, machine: Machine, date: str) -> RecordedTrial | None:
    """Return the entry of a trial for the history file; None if nothing was measured.

    A speed-up without an upper limit is remembered with one as far above it as the lower limit is below.
    """
    achieved = trial.speedup
    if achieved is not None and 0 < achieved.low <= achieved.value < achieved.high == math.inf:
        achieved = replace(achieved, high=achieved.value**2 / achieved.low)
    if achieved is None or not _is_interval(achieved.low, achieved.high):
        return None
    return RecordedTrial(
        remedy=trial.remedy,
        safety=trial.safety,
        status=trial.status,
        predicted_by_findings=trial.predicted_by_findings,
        predicted=trial.predicted,
        achieved=achieved,
        machine=machine,
        date=date,
    )


def correct_predictions(
    candidates: Iterable[Candidate], seen: Sequence[RecordedTrial], device: str, worth: float
) -> list[Candidate]:
    """Return candidates with corrected predictions, the largest expected gain first; of equal ones what begins soonest.

    Args:
        candidates: As remedies propose them.
        seen: Earlier trials, the oldest first.
        device: The kind of device; trials on others say nothing.
        worth: Factor below which a gain is not worth having, such as 1.02.
    """
    made = [_correct_prediction(one, [o for o in seen if o.machine.device == device], worth) for one in candidates]
    return sorted(made, key=lambda one: (-expected(one), one.startup_s))


def _correct_prediction(candidate: Candidate, seen: Sequence[RecordedTrial], worth: float) -> Candidate:
    findings = candidate.predicted
    own = [one for one in seen if one.remedy == candidate.remedy]
    predicted = corrected_gain(findings, own, worth) if findings is not None else None
    return replace(candidate, predicted=predicted, predicted_by_findings=findings)


def corrected_gain(predicted: Gain, seen: Sequence[RecordedTrial], worth: float) -> Gain:
    """Return the expected gain of a remedy: the prediction of the findings, corrected by earlier trials.

    A gain worth having is ruled out by earlier trials only where enough of them had none.

    Args:
        predicted: By the findings.
        seen: Trials of the remedy on such a device, the oldest first.
        worth: Factor below which a gain is not worth having.
    """
    pairs = [pair for one in seen if (pair := _expected_and_gained(one)) is not None][-NEWEST:]
    if len(pairs) < _FEWEST or not _is_interval(predicted.low, predicted.high):
        return predicted
    found = _posterior(predicted, pairs)
    without = sum(gained < math.log(worth) for _, gained in pairs)
    if predicted.high >= worth > found.high and without < AGREEING:
        return Gain(low=found.low, high=worth)
    return found


def _posterior(predicted: Gain, pairs: Sequence[tuple[float, float]]) -> Gain:
    """Apply the formulas above to the expected and achieved gains (logs) of some trials."""
    low, high = math.log(predicted.low), math.log(predicted.high)
    centre, half = (low + high) / 2, (high - low) / 2
    own2 = centre * centre / _size2(centre)
    weight = _PRIOR + sum(c * c / _size2(c) for c, _ in pairs)
    beta = (_PRIOR + sum(a * c / _size2(c) for c, a in pairs)) / weight
    unit = half / t_quantile(_Z, _PRIOR_SPREAD)  # s_0 d sqrt(1 + c^2 / d^2 / k)
    claimed2 = unit * unit / _size2(centre) / (1 + own2 / _PRIOR)
    residual2 = sum((a - beta * c) ** 2 / _size2(c) for c, a in pairs) + _PRIOR * (beta - 1) ** 2
    freedom = _PRIOR_SPREAD + len(pairs)
    spread2 = (_PRIOR_SPREAD * claimed2 + residual2) / freedom
    reach = t_quantile(_Z, freedom) * math.sqrt(spread2 * _size2(centre) * (1 + own2 / weight))
    beta = min(beta, _STEEPEST)
    reach = max(reach, abs(beta) * half)
    if len(pairs) < _MANY:
        reach = min(reach, _WIDEST * half + _FLOOR)
    return Gain(low=math.exp(beta * centre - reach), high=math.exp(beta * centre + reach))


def _size2(centre: float) -> float:
    return centre * centre + _FLOOR * _FLOOR


def _expected_and_gained(one: RecordedTrial) -> tuple[float, float] | None:
    """Return the logs of the gain that the findings expected and of the one achieved; None where it does not count.

    A trial whose interval contains both a loss and a gain measured noise, and does not count.
    """
    by_findings = one.predicted_by_findings
    if by_findings is None or one.status not in _COUNTED or not _is_interval(by_findings.low, by_findings.high):
        return None
    if not _is_interval(one.achieved.value, one.achieved.value) or is_inconclusive(one.achieved):
        return None
    return (math.log(by_findings.low) + math.log(by_findings.high)) / 2, math.log(one.achieved.value)


def _is_interval(low: float, high: float) -> bool:
    """Say whether these are the ends of an interval of factors; a comparison with NaN is false."""
    return 0 < low <= high < math.inf
