"""Cases that tests predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.hardware.catalogue import find_gpu
from paceline.plan.cost.case import Case, Cluster, PlannedLayout, Training
from paceline.plan.cost.columns import columns_of
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.memory import PeakMemory, memory
from paceline.plan.cost.step_time import StepTime, step
from paceline.plan.models.lookup import published_transformer

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "plan" / "published.csv"


def case(name: str = "Llama-3-8B", gpu: str = "H100-SXM", count: int = 8, *, seq: int = 8192, **how: Any) -> Case:
    """A transformer sharded over all GPUs unless axes are given."""
    model = published_transformer(name)
    assert model is not None
    axes = {axis: how.pop(axis) for axis in ("dp", "shard", "tp", "pp", "cp", "ep") if axis in how}
    layout = PlannedLayout(**(axes or {"shard": count}))
    training = Training(**{"micro_batch": 1.0, "sharded": "parameters", **how})
    cluster = Cluster(gpu=find_gpu(gpu), count=count, per_node=min(8, count))
    return Case(model=replace(model, seq=seq), layout=layout, training=training, cluster=cluster)


def step_of(*cases: Case) -> StepTime:
    return step(columns_of(cases), fitted().constants)


def memory_of(*cases: Case) -> PeakMemory:
    return memory(columns_of(cases), fitted().constants)
