"""The request and the result of a search for a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.plan.cost.case import Cluster, PlannedLayout, Recompute, Schedule
from paceline.plan.cost.plan import Plan
from paceline.plan.models.adapters import Adapted
from paceline.plan.models.architecture import Kernels, Model
from paceline.plan.models.counted_step import CountedStep

OPTIMIZER_BYTES = {
    "adamw": 8.0,
    "adam": 8.0,
    "adam-8bit": 2.0,
    "lion": 4.0,
    "muon": 4.0,
    "sgd-momentum": 4.0,
    "adafactor": 0.1,  # a row and a column instead of a matrix
    "sgd": 0.0,
}
USUAL_OPTIMIZER = "adamw"

Candidate = TypeVar("Candidate")
_WAYS: tuple[Recompute, ...] = ("none", "cheap", "half", "full")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The request of a search: what to train, and on which cluster.

    Attributes:
        global_batch: Samples per step.
        layout: The only layout to consider; None for all.
        micro_batch: The only micro-batch size to consider; None for all.
        states: Bytes of a trained weight, of its gradient, and of its optimizer state.
        by_engine: Whether to consider only configurations that `paceline.train` supports.
        schedule: The only pipeline schedule to consider; None for those that could be best.
        optimizer: Name of the optimizer; `states` has its bytes.
        adapted: The trained part, if weights are frozen.
        counted: Kernels and bytes of the program itself, in `precision` and with `optimizer`.
    """

    model: Model
    cluster: Cluster
    global_batch: int
    precision: str = "bf16"
    layout: PlannedLayout | None = None
    micro_batch: int | None = None
    ways: tuple[Recompute, ...] = _WAYS
    by_engine: bool = False
    kernels: Kernels = "fused"
    schedule: Schedule | None = None
    optimizer: str = USUAL_OPTIMIZER
    states: tuple[float, float, float] = (4.0, 4.0, 8.0)  # fp32 with autocast, as `paceline.train` keeps them
    adapted: Adapted = Adapted()
    counted: CountedStep | None = None


def unbeaten(candidates: Sequence[Candidate], value: Callable[[Candidate], float]) -> list[Candidate]:
    """Return the candidates, in the given order, whose value is below that of all candidates before them."""
    kept: list[Candidate] = []
    for each in candidates:
        if not kept or value(each) < value(kept[-1]):
            kept.append(each)
    return kept


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of a search.

    Attributes:
        plans: Plans that fit in memory, fastest first; each needs less memory than those before it.
        looked_at: Number of configurations that were predicted.
        rejected: Number of rejected configurations for each reason.
        nearest: The plan that needs least memory, which is reported if no plan fits.
        played: Number of simulated pipelines.
    """

    plans: tuple[Plan, ...]
    looked_at: int
    rejected: dict[str, int]
    nearest: Plan
    played: int
