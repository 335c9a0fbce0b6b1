"""How far off are the predictions? Errors of time and memory, order and fit, by source and overall.

The absolute percentage error of a row is |predicted / measured - 1|; given are its median and its 90th percentile.
Order is the share of pairs of rows of one source whose step times come in the measured order (what measured the same
counts for neither). Sources weigh alike in `median_of_sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from paceline.plan.constants import Fitted
from paceline.plan.fits import SURE, probability
from paceline.plan.model import ConvNet
from paceline.plan.predict import Prediction, predict
from paceline.plan.regret import Regret, regret
from paceline.plan.rows import Row
from paceline.plan.setting import Case

_LONG = 32768  # tokens
_UNSEEN_REGIME = 0.5  # spread of the step time for a kind of training of which no row was published
_APART = 0.05  # rows of a sweep that measured closer than this are as good as each other


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Of a group of rows; fractions, None where nothing is to compare."""

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
    """Rows whose fit was predicted, by what happened."""

    right: int
    wrong_fits: int  # said to fit, did not
    wrong_ooms: int  # said not to fit, did
    sure_wrong_fits: int  # the first, where the probability was above `fits.SURE`


@dataclass(frozen=True, kw_only=True)
class Report:
    """The predictions for a file of measurements, beside what was measured."""

    rows: tuple[Row, ...]
    predictions: tuple[Prediction, ...]
    sources: dict[str, Errors]
    regimes: dict[str, Errors]
    overall: Errors
    median_of_sources: dict[str, float | None]
    oom: OutOfMemory
    regret: Regret


def validate(rows: Sequence[Row], fitted: Fitted) -> Report:
    """Predict every row and compare."""
    predictions = predict(rows, fitted.constants)
    pairs = list(zip(rows, predictions, strict=True))
    sources = _grouped(pairs, lambda row: row.source)
    return Report(
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
        regret=regret(pairs),
    )


def regime(row: Row) -> str:
    """Return the kind of training that a row is of, as accuracy differs by it."""
    return regime_of(row.cases[0]) if row.cases else "refused"


def regime_of(case: Case) -> str:
    """Return that of a case."""
    model, how = case.model, case.training
    if isinstance(model, ConvNet) or not model.causal:
        return "CNN, BERT and similar, data parallel"
    if how.adapters:
        return "adapters (LoRA, QLoRA)"
    if model.experts or case.cluster.gpu.architecture.startswith("Blackwell"):
        return "experts (MoE), Blackwell"
    if model.seq >= _LONG or how.precision in ("fp8", "fp4"):
        return "long context, fp8"
    if how.sharded == "parameters":
        return "dense, sharded weights (FSDP, ZeRO-3)"
    volta = case.cluster.gpu.architecture == "Volta"
    return "dense, 3-D parallel, V100" if volta else "dense, 3-D parallel, A100 and later"


def spread_of(case: Case, fitted: Fitted) -> float:
    """Return within which share of the step time four in five predictions of such a case lay."""
    return fitted.time_spread.get(regime_of(case), _UNSEEN_REGIME)


def _grouped(pairs: Sequence[tuple[Row, Prediction]], key: Callable[[Row], str]) -> dict[str, Errors]:
    groups: dict[str, list[tuple[Row, Prediction]]] = {}
    for row, found in pairs:
        groups.setdefault(key(row), []).append((row, found))
    return {name: _errors(members) for name, members in groups.items()}


def _errors(pairs: Sequence[tuple[Row, Prediction]]) -> Errors:
    compared = [
        (row, row.step_s, found.step_s) for row, found in pairs if row.step_s and found.step_s and not row.out_of_memory
    ]
    time = [abs(predicted / measured - 1) for _, measured, predicted in compared]
    memory = [
        abs(found.memory_bytes / row.memory_bytes - 1)
        for row, found in pairs
        if row.memory_bytes and found.memory_bytes
    ]
    predicted = sum(found.step_s is not None for _, found in pairs)
    return Errors(
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


def _per_sample(row: Row, measured: float, predicted: float) -> tuple[str, float, float]:
    batch = row.timed[0].global_batch
    return f"{row.source}/{row.sweep}", measured / batch, predicted / batch


def _order(rows: Sequence[tuple[str, float, float]], apart: float = 0.0) -> float | None:
    """Share of pairs within a group whose predicted times come in the order of the measured ones.

    Args:
        rows: Group, measured and predicted time.
        apart: Pairs measured no further apart than this share do not count.
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


def _out_of_memory(pairs: Sequence[tuple[Row, Prediction]], spread: float) -> OutOfMemory:
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
