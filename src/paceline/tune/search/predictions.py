"""Corrects predicted gains by the results of earlier trials on this machine.

On the log scale, the findings predicted a gain c_i for trial i of a remedy (the middle of their interval), and the
trial gained a_i. Let f = log 1.1, the size below which a gain cannot be told from the noise of a machine, and

    a_i = beta c_i + e_i,    e_i ~ N(0, s^2 d_i^2),    d_i^2 = c_i^2 + f^2,    beta ~ N(1, s^2 / k)

That is: on this machine, a remedy gains a share beta of its predicted gain, and errors grow with the predicted gain.
The model has a slope instead of an offset because a remedy that gained half of a predicted 8x says little about a
predicted 1.05x. The posterior mean of beta shrinks towards 1 (the findings are right), as if k trials had shown that:

    w = sum c_i^2 / d_i^2,    beta = (k + sum a_i c_i / d_i^2) / (k + w)

With an inverse gamma prior on s^2 that weighs as much as m trials, the next gain follows Student's t:

    s^2 = (m s_0^2 + sum (a_i - beta c_i)^2 / d_i^2 + k (beta - 1)^2) / (m + n)
    beta c -+ t s d sqrt(1 + c^2 / d^2 / (k + w)),    t = the 90% quantile with m + n degrees of freedom

An interval of the findings, c - h to c + h, should contain four of five measured gains. s_0 is chosen so that the
second line gives this interval if there are no trials yet. The interval never becomes narrower than beta c -+ |beta| h:
trials of other programs can show that findings were wrong, but not that they are more certain for this program. Few
trials must not make the interval too wide to be useful. So with fewer than three trials nothing is corrected. With
fewer than eight trials the interval extends at most 2 h + f to each side. beta is at most 2.
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

NEWEST = 50  # most trials of a remedy that count, the newest ones: programs, versions and machines change
AGREEING = 5  # number of trials without a gain worth having, from which none is expected
_FEWEST = 3  # with fewer trials than this, nothing is corrected
_MANY = 8  # from this number of trials on, the interval may be as wide as their results vary
_STEEPEST = 2.0  # largest beta
_WIDEST = 2.0  # widest interval with few trials, relative to the findings' interval, on the log scale
_PRIOR = 1.0  # k
_PRIOR_SPREAD = 2.0  # m
_FLOOR = math.log(1.1)  # f
_Z = 1.2816  # 90% quantile of the normal distribution
_COUNTED = ("kept", "no-win", "undecided")  # trials that failed an equivalence check do not measure speed


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a trial."""

    host: str
    device: str  # kind of device: the name of the GPU, or "cpu"
    torch: str  # version


@dataclass(frozen=True, kw_only=True)
class RecordedTrial:
    """A measured trial in the history file: the predicted and the measured gain."""

    remedy: str
    safety: Safety
    status: Status
    predicted_by_findings: Gain | None
    predicted: Gain | None  # the prediction after correction by earlier trials
    achieved: Interval
    machine: Machine
    date: str  # ISO 8601, UTC


def machine_of(context: DiagnosisContext) -> Machine:
    """Return the machine on which a program was watched."""
    first = context.facts.first.record
    return Machine(
        host=first.host,
        device=str(first.meta.get("device_name") or first.device),
        torch=str(first.meta.get("torch", "")),
    )


def recorded_trial(trial: Trial, machine: Machine, date: str) -> RecordedTrial | None:
    """Return the entry of a trial for the history file, or None if nothing was measured.

    If the interval of the speed-up has no upper end, the entry gets an upper end that is as far above the value (as a
    factor) as the lower end is below.
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
    """Return the candidates with corrected predictions, the largest expected gain first.

    Candidates with the same expected gain are sorted by their start-up time.

    Args:
        candidates: The candidates that the remedies propose.
        seen: Earlier trials, the oldest first.
        device: The kind of device. Trials on other devices do not count.
        worth: Gains below this factor, such as 1.02, are not worth having.
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

    The whole interval is below `worth` only if at least `AGREEING` trials gained less than `worth`.

    Args:
        predicted: The prediction of the findings.
        seen: Trials of the remedy on the same kind of device, the oldest first.
        worth: Gains below this factor are not worth having.
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
    """Apply the formulas of the module docstring to the predicted and measured gains (logs) of some trials."""
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
    """Return the logs of the predicted and of the measured gain, or None if the trial does not count.

    A trial does not count if its interval contains both a loss and a gain, because it measured noise.
    """
    by_findings = one.predicted_by_findings
    if by_findings is None or one.status not in _COUNTED or not _is_interval(by_findings.low, by_findings.high):
        return None
    if not _is_interval(one.achieved.value, one.achieved.value) or is_inconclusive(one.achieved):
        return None
    return (math.log(by_findings.low) + math.log(by_findings.high)) / 2, math.log(one.achieved.value)


def _is_interval(low: float, high: float) -> bool:
    """Return whether `low` and `high` are the ends of an interval of factors. NaN gives False."""
    return 0 < low <= high < math.inf
