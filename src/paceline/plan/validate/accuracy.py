"""The accuracy of predictions: errors of time and memory, order of step times, out of memory, and wrong choices.

The absolute percentage error of a published measurement (row) is |predicted / measured - 1|; the median and the 90th
percentile are reported. For the order, all pairs of rows of one source are compared: it is the share of pairs whose
predicted step times are in the measured order (ties are not counted). In `median_of_sources` all sources have equal
weight.

A sweep is the rows of one source with the same model, cluster, sample length and format. The regret of a sweep is how
much slower the row with the fastest prediction is than the row with the fastest measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from paceline.plan.cost.constants import SURE, Fitted, probability, regime_of
from paceline.plan.validate.prediction import Prediction, predict_rows
from paceline.plan.validate.published_rows import PublishedRow

_APART = 0.05  # rows of a sweep whose measurements differ by less count as equal


@dataclass(frozen=True, kw_only=True)
class PredictionErrors:
    """Prediction errors for a group of published measurements, as fractions; None if nothing can be compared."""

    rows: int
    predicted: int
    refused: int
    timed: int  # rows whose step time is compared
    time_mdape: float | None
    time_p90: float | None
    memory_rows: int
    memory_mdape: float | None
    memory_p90: float | None
    order: float | None
    order_in_sweeps: float | None  # among rows with one model and cluster, time per sample, over 5% apart


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """Counts of published measurements, by whether the prediction that they fit in memory was right."""

    right: int
    wrong_fits: int  # predicted to fit, but out of memory
    wrong_ooms: int  # predicted out of memory, but fit
    sure_wrong_fits: int  # those of `wrong_fits` with a probability above `constants.SURE`


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The published measurements of a file, their predictions, and the errors."""

    rows: tuple[PublishedRow, ...]
    predictions: tuple[Prediction, ...]
    sources: dict[str, PredictionErrors]
    regimes: dict[str, PredictionErrors]
    overall: PredictionErrors
    median_of_sources: dict[str, float | None]
    oom: OutOfMemory
    regret: ChoiceErrors


def validate(rows: Sequence[PublishedRow], fitted: Fitted) -> Validation:
    """Predict all published measurements (rows), and return the predictions with their errors."""
    predictions = predict_rows(rows, fitted.constants)
    pairs = list(zip(rows, predictions, strict=True))
    sources = _grouped(pairs, lambda row: row.source)
    return Validation(
        rows=tuple(rows),
        predictions=tuple(predictions),
        sources=sources,
        regimes=_grouped(pairs, regime),
        overall=_errors(pairs),
        median_of_sources={
            name: _median([getattr(each, name) for each in sources.values()])
            for name in ("time_mdape", "memory_mdape", "order")
        },
        oom=_out_of_memory(pairs, fitted.memory_spread),
        regret=choice_errors(pairs),
    )


def regime(row: PublishedRow) -> str:
    """Return the kind of training of a published measurement, as `constants.regime_of` names it, or ``refused``."""
    return regime_of(row.cases[0]) if row.cases else "refused"


def _grouped(
    pairs: Sequence[tuple[PublishedRow, Prediction]], key: Callable[[PublishedRow], str]
) -> dict[str, PredictionErrors]:
    groups: dict[str, list[tuple[PublishedRow, Prediction]]] = {}
    for row, found in pairs:
        groups.setdefault(key(row), []).append((row, found))
    return {name: _errors(members) for name, members in groups.items()}


def _errors(pairs: Sequence[tuple[PublishedRow, Prediction]]) -> PredictionErrors:
    compared = _compared(pairs)
    time = [abs(predicted / measured - 1) for _, measured, predicted in compared]
    memory = [
        abs(found.memory_bytes / row.memory_bytes - 1)
        for row, found in pairs
        if row.memory_bytes and found.memory_bytes
    ]
    predicted = sum(found.step_s is not None for _, found in pairs)
    return PredictionErrors(
        rows=len(pairs),
        predicted=predicted,
        refused=len(pairs) - predicted,
        timed=len(time),
        time_mdape=_median(time),
        time_p90=_p90(time),
        memory_rows=len(memory),
        memory_mdape=_median(memory),
        memory_p90=_p90(memory),
        order=_order([(row.source, measured, predicted) for row, measured, predicted in compared]),
        order_in_sweeps=_order([_per_sample(*each) for each in compared], apart=_APART),
    )


def _compared(pairs: Sequence[tuple[PublishedRow, Prediction]]) -> list[tuple[PublishedRow, float, float]]:
    """Return the rows with both a measured and a predicted step time, and these two times in seconds."""
    return [
        (row, row.step_s, found.step_s) for row, found in pairs if row.step_s and found.step_s and not row.out_of_memory
    ]


def _per_sample(row: PublishedRow, measured: float, predicted: float) -> tuple[str, float, float]:
    batch = row.timed[0].global_batch
    return f"{row.source}/{row.sweep}", measured / batch, predicted / batch


def _order(rows: Sequence[tuple[str, float, float]], apart: float = 0.0) -> float | None:
    """Return the share of pairs of rows whose predicted times have the same order as their measured times.

    Args:
        rows: The group, the measured and the predicted time of each row. Pairs are made within a group.
        apart: Pairs whose measurements differ by less than this share do not count.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for group, measured, predicted in rows:
        groups.setdefault(group, []).append((measured, predicted))
    agreed = [
        (first[0] < second[0]) == (first[1] < second[1])
        for members in groups.values()
        for first, second in combinations(members, 2)
        if abs(first[0] / second[0] - 1) > apart
    ]
    return sum(agreed) / len(agreed) if agreed else None


def _out_of_memory(pairs: Sequence[tuple[PublishedRow, Prediction]], spread: float) -> OutOfMemory:
    counts = {"right": 0, "wrong_fits": 0, "wrong_ooms": 0, "sure_wrong_fits": 0}
    for row, found in pairs:
        if found.needed_bytes is None:
            continue
        fits = probability(found.needed_bytes, row.cases[0].cluster.memory_bytes, spread)
        counts[_verdict(fits > 0.5, row.out_of_memory)] += 1
        counts["sure_wrong_fits"] += row.out_of_memory and fits > SURE
    return OutOfMemory(**counts)


def _verdict(fits: bool, out_of_memory: bool) -> str:
    if fits != out_of_memory:
        return "right"
    return "wrong_fits" if fits else "wrong_ooms"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _p90(values: Sequence[float]) -> float | None:
    return float(np.quantile(values, 0.9)) if values else None


_CLOSE = 0.05


@dataclass(frozen=True, kw_only=True)
class ChoiceErrors:
    """The regret of choosing by prediction, over all sweeps with two rows or more.

    The regret is how much slower the chosen row is than the fastest row, as a fraction of the fastest time.
    `within_5_percent` is the share of sweeps with a regret of at most 5 %. The values are None without such sweeps.
    """

    sweeps: int
    within_5_percent: float | None
    median: float | None
    worst: float | None


def choice_errors(pairs: Sequence[tuple[PublishedRow, Prediction]]) -> ChoiceErrors:
    """Return the regret of choosing configurations by their predictions."""
    sweeps: dict[str, list[tuple[float, float]]] = {}
    for sweep, measured, predicted in (_per_sample(*each) for each in _compared(pairs)):
        sweeps.setdefault(sweep, []).append((predicted, measured))
    losses = [_loss(members) for members in sweeps.values() if len(members) > 1]
    return ChoiceErrors(
        sweeps=len(losses),
        within_5_percent=sum(loss <= _CLOSE for loss in losses) / len(losses) if losses else None,
        median=median(losses) if losses else None,
        worst=max(losses, default=None),
    )


def _loss(members: list[tuple[float, float]]) -> float:
    """Return by how much the row with the fastest prediction is slower than the fastest row, as a fraction."""
    _, chosen = min(members)
    return chosen / min(measured for _, measured in members) - 1
