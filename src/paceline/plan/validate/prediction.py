"""Predicts published measurements (rows). Of the candidate configurations of a row, the fastest that fits is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.plan.cost.case import Case
from paceline.plan.cost.columns import Columns, Floats, columns_of
from paceline.plan.cost.constants import Constants
from paceline.plan.cost.convnet import conv_step, replica_memory
from paceline.plan.cost.memory import memory
from paceline.plan.cost.step_time import step
from paceline.plan.models.architecture import Transformer
from paceline.plan.validate.published_rows import PublishedRow

KINDS = ("allocated", "reserved", "shown")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The candidate configurations of all rows as columns: entry `i` of the transformers belongs to row `owner[i]`."""

    count: int
    timed: Columns | None
    kept: Columns | None
    owner: NDArray[np.int64]
    networks: dict[int, Case]  # convolutional networks by row
    kind: NDArray[np.int64]  # kind of memory that each row's source publishes, an index of KINDS


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one row; its numbers are None, with a reason, if the row cannot be predicted.

    Attributes:
        step_s: Seconds of a step.
        memory_bytes: Peak memory of the kind that the row's source publishes (allocated, reserved, or as nvidia-smi
            shows it).
        needed_bytes: Peak memory as nvidia-smi shows it, which must fit in the GPU.
        assumed: The settings that the row does not state, taken from its fastest candidate that fits.
    """

    step_s: float | None = None
    memory_bytes: float | None = None
    needed_bytes: float | None = None
    assumed: str = ""
    reason: str = ""


def predict_rows(rows: Sequence[PublishedRow], constants: Constants) -> list[Prediction]:
    """Return the prediction for each row, or the reason why there is none."""
    prepared = prepare(rows)
    seconds, published = step_seconds(prepared, constants), memory_bytes(prepared, constants)
    picked = choose_candidates(prepared, constants)
    needed = np.full(len(rows), np.nan)
    if prepared.kept is not None:
        found = picked >= 0
        needed[found] = memory(prepared.kept, constants).total[picked[found]]
    for row, case in prepared.networks.items():
        needed[row] = sum(replica_memory(case, constants).values())
    first = np.searchsorted(prepared.owner, np.arange(len(rows)))
    return [
        Prediction(
            step_s=_known(seconds[index]),
            memory_bytes=_known(published[index]),
            needed_bytes=_known(needed[index]),
            assumed=_assumed(row, int(picked[index] - first[index])) if picked[index] >= 0 else "",
        )
        if row.cases
        else Prediction(reason=row.reason)
        for index, row in enumerate(rows)
    ]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _assumed(row: PublishedRow, candidate: int) -> str:
    if len(row.cases) == 1:
        return ""
    how = row.cases[candidate].training
    return f"micro-batch {how.micro_batch:g}, recomputation {how.recompute}, {how.chunks} chunks"


def prepare(rows: Sequence[PublishedRow]) -> Prepared:
    """Return the candidate configurations of all rows as columns."""
    owner = [index for index, row in enumerate(rows) for case in row.cases if isinstance(case.model, Transformer)]
    timed = [case for row in rows for case in row.timed if isinstance(case.model, Transformer)]
    kept = [case for row in rows for case in row.cases if isinstance(case.model, Transformer)]
    networks = {
        index: row.timed[0]
        for index, row in enumerate(rows)
        if row.cases and not isinstance(row.cases[0].model, Transformer)
    }
    return Prepared(
        count=len(rows),
        timed=columns_of(timed) if timed else None,
        kept=columns_of(kept) if kept else None,
        owner=np.array(owner, dtype=np.int64),
        networks=networks,
        kind=np.array([KINDS.index(row.memory_kind) for row in rows], dtype=np.int64),
    )


def choose_candidates(prepared: Prepared, constants: Constants) -> NDArray[np.int64]:
    """Return for each row the index of the candidate to use, or -1 for a row without candidates in the columns.

    This is the fastest candidate that fits in memory, or, if none fits, the one that exceeds the memory least.
    """
    best = np.full(prepared.count, -1, dtype=np.int64)
    if prepared.timed is None or prepared.kept is None:
        return best
    seconds = step(prepared.timed, constants).total
    held = memory(prepared.kept, constants)
    over = np.maximum(held.total / prepared.kept.memory, 1.0)
    for index, row in enumerate(prepared.owner):
        now = best[row]
        if now < 0 or (over[index], seconds[index]) < (over[now], seconds[now]):
            best[row] = index
    return best


def step_seconds(prepared: Prepared, constants: Constants) -> Floats:
    """Return the predicted step time of every row in seconds; NaN for a row that cannot be predicted."""
    found = np.full(prepared.count, np.nan)
    if prepared.timed is not None:
        picked = choose_candidates(prepared, constants)
        found[picked >= 0] = step(prepared.timed, constants).total[picked[picked >= 0]]
    for row, case in prepared.networks.items():
        found[row] = conv_step(case, constants).total
    return found


def memory_bytes(prepared: Prepared, constants: Constants) -> Floats:
    """Return the predicted peak memory of every row in bytes; NaN if unknown.

    It is the kind of memory that the row's source publishes.
    """
    found = np.full(prepared.count, np.nan)
    if prepared.kept is not None:
        picked = choose_candidates(prepared, constants)
        held = memory(prepared.kept, constants)
        kinds = np.stack([held.allocated, held.reserved, held.total])
        rows = picked >= 0
        found[rows] = kinds[prepared.kind[rows], picked[rows]]
    for row, case in prepared.networks.items():
        found[row] = _of_kind(replica_memory(case, constants), KINDS[prepared.kind[row]])
    return found


def _of_kind(parts: dict[str, float], kind: str) -> float:
    """Return the peak memory of a convolutional network, of the kind that its source publishes.

    For example, allocated memory contains neither fragmentation nor the CUDA context.
    """
    left_out = {"allocated": ("fragmentation", "context"), "reserved": ("context",)}.get(kind, ())
    return sum(value for name, value in parts.items() if name not in left_out)
