"""What a search is asked for, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.cost.case import Cluster, Layout, Recompute, Schedule
from paceline.plan.cost.plan import Plan
from paceline.plan.models.adapters import Adapted
from paceline.plan.models.architecture import Kernels, Model

OPTIMIZER_BYTES = {
    "adamw": 8.0,
    "adam": 8.0,
    "adam-8bit": 2.0,
    "lion": 4.0,
    "muon": 4.0,
    "sgd-momentum": 4.0,
    "adafactor": 0.1,  # rows and columns in place of a matrix
    "sgd": 0.0,
}
USUAL_OPTIMIZER = "adamw"

_WAYS: tuple[Recompute, ...] = ("none", "cheap", "half", "full")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be trained on which cluster.

    Attributes:
        global_batch: Samples of a step.
        layout: The only one to look at; None: all.
        micro_batch: The only one to look at; None: all.
        states: Bytes of a weight, of its gradient and of what the optimizer keeps for it.
        by_engine: Look only at what `paceline.train` can run (`engine`).
        schedule: Of a pipeline, the only one to look at; None: those that may be best.
        optimizer: What it is called; `states` say what it keeps.
        adapted: What is trained beside frozen weights; `states` are of that then.
    """

    model: Model
    cluster: Cluster
    global_batch: int
    precision: str = "bf16"
    layout: Layout | None = None
    micro_batch: int | None = None
    ways: tuple[Recompute, ...] = _WAYS
    by_engine: bool = False
    kernels: Kernels = "fused"
    schedule: Schedule | None = None
    optimizer: str = USUAL_OPTIMIZER
    states: tuple[float, float, float] = (4.0, 4.0, 8.0)  # fp32 with autocast, as `paceline.train` keeps them
    adapted: Adapted = Adapted()


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search came to.

    Attributes:
        plans: Those that surely fit and are worth a look, fastest first: no other is faster and needs less memory.
        looked_at: How many there were.
        rejected: Why the others are not, with counts.
        nearest: Where none fits: the one that needs least.
        played: How many pipelines were played.
    """

    plans: tuple[Plan, ...]
    looked_at: int
    rejected: dict[str, int]
    nearest: Plan
    played: int
