"""The search for the best layout: the fastest of all configurations that fit in memory with enough certainty.

All configurations are predicted by closed forms. The front has the configurations that no other beats in both time and
memory. Those with a pipeline are then simulated, fastest first, until all pipelines on the front are simulated.
Configurations that do not fit are counted by reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.plan.cost.case import Case, PlannedLayout, Training
from paceline.plan.cost.columns import Floats, columns_of, on_cluster
from paceline.plan.cost.constants import SURE, Fitted, probabilities, probability
from paceline.plan.cost.convnet import replica_memory
from paceline.plan.cost.machines import domain
from paceline.plan.cost.memory import PeakMemory, memory
from paceline.plan.cost.pipeline import SimulatedCase, pipe_of, ranks_memory, simulate_case, tasks_of
from paceline.plan.cost.plan import Plan
from paceline.plan.cost.step_time import StepTime, step
from paceline.plan.models.architecture import ConvNet, Transformer
from paceline.plan.search.convnet_search import search_convnet
from paceline.plan.search.grid import GridQuery, grid_of
from paceline.plan.search.wish import SearchResult, Wish

_MOST_TASKS = 100_000  # limit on simulated pipeline tasks for one search
_ROOM = 0.85  # least ratio of simulated to closed-form memory: the first stage has fewer blocks than the fullest


def search(wish: Wish, fitted: Fitted, most_tasks: int = _MOST_TASKS) -> SearchResult:
    """Return the configurations that fit in memory and that no other beats in both time and memory.

    Args:
        wish: The request.
        fitted: The fitted constants.
        most_tasks: Limit on simulated pipeline tasks; 0 to use closed forms only.

    Raises:
        UsageError: No configuration divides the cluster, the batch and the model.
    """
    if isinstance(wish.model, ConvNet):
        return search_convnet(wish, wish.model, fitted)
    grid = grid_of(_grid_query(wish, wish.model))
    refused = Counter(dict(grid.refused))
    if grid.columns is None:
        reasons = "; ".join(f"{count}: {why}" for why, count in refused.items()) or "none possible"
        raise UsageError(
            f"no parallel layout splits {wish.cluster.count} GPUs, {wish.model.layers} blocks, {wish.model.heads} "
            f"heads and a "
            f"batch of {wish.global_batch} evenly ({reasons}); change --batch, or the number of GPUs"
        )
    c = on_cluster(grid.columns, wish.cluster, wish.precision)
    cases = _Cases(wish, grid.choices)
    seconds, held = step(c, fitted.constants), memory(c, fitted.constants)
    chance = np.array(probabilities(held.total, c.memory, fitted.memory_spread))
    hopeful = np.array(probabilities(_ROOM * held.total, c.memory, fitted.memory_spread)) >= SURE
    looked = _Candidates(seconds.total.copy(), held.total.copy(), chance, np.where(c.pp > 1, hopeful, chance >= SURE))
    played = _simulate_front(cases, looked, fitted, most_tasks)
    sure, front = looked.chance >= SURE, _front(looked)
    for index in np.flatnonzero(~sure):
        refused[_too_much(held, int(index))] += 1
    refused["slower than another layout that needs no more memory"] += int(sure.sum()) - len(front)
    least = int(np.argmin(looked.held / c.memory))
    return SearchResult(
        plans=tuple(_plan(cases[index], (seconds, held), looked, played, index) for index in front),
        looked_at=len(grid.choices),
        rejected={why: count for why, count in refused.items() if count},
        nearest=_plan(cases[least], (seconds, held), looked, played, least),
        played=len(played),
    )


@dataclass(frozen=True)
class _Candidates:
    """The predictions of all configurations. Results of simulations replace those of closed forms."""

    seconds: Floats
    held: Floats
    chance: Floats
    hopeful: NDArray[np.bool_]  # it fits with enough certainty, or may do so when simulated


def _simulate_front(cases: _Cases, looked: _Candidates, fitted: Fitted, most_tasks: int) -> dict[int, SimulatedCase]:
    """Simulate the pipeline configurations that no other beats in both time and memory, fastest first.

    This ends when all of them are simulated, or when `most_tasks` pipeline tasks were simulated.
    """
    played: dict[int, SimulatedCase] = {}
    tasks = 0
    while tasks < most_tasks:
        index = next((each for each in _front(looked) if each not in played and cases[each].layout.pp > 1), None)
        if index is None:
            break
        case = cases[index]
        tasks += tasks_of(pipe_of(case))
        found = played[index] = simulate_case(case, fitted.constants)
        held = float(found.memory.total[0])
        looked.seconds[index], looked.held[index] = found.step.total[0], held
        looked.chance[index] = probability(held, case.cluster.memory_bytes, fitted.memory_spread)
        looked.hopeful[index] = looked.chance[index] >= SURE
    looked.hopeful[:] = looked.chance >= SURE
    return played


@dataclass(frozen=True)
class _Cases:
    """The configurations of a search as a list of cases; each case is created when it is accessed."""

    wish: Wish
    choices: tuple[tuple[PlannedLayout, Training], ...]

    def __getitem__(self, index: int) -> Case:
        layout, training = self.choices[index]
        return Case(model=self.wish.model, cluster=self.wish.cluster, layout=layout, training=training)


def _front(looked: _Candidates) -> list[int]:
    """Return the indices of the configurations that no other beats in both time and memory.

    The fastest is first; each needs less memory than those before it.
    """
    order = np.lexsort((looked.held, looked.seconds))
    order = order[looked.hopeful[order]]
    held = looked.held[order]
    before = np.minimum.accumulate(np.concatenate(([np.inf], held)))[:-1]
    chosen: list[int] = order[held < before].tolist()
    return chosen


def _too_much(held: PeakMemory, index: int) -> str:
    states = held.weights[index] + held.gradients[index] + held.optimizer[index]
    passing = held.activations[index] + held.logits[index]
    return f"may not fit in memory, mostly because of {'weights and optimizer' if states > passing else 'activations'}"


def _plan(
    case: Case, closed: tuple[StepTime, PeakMemory], looked: _Candidates, played: dict[int, SimulatedCase], index: int
) -> Plan:
    found, at = played.get(index), 0 if index in played else index
    seconds, held = (found.step, found.memory) if found else closed
    return Plan(
        case=case,
        step_s=float(looked.seconds[index]),
        step_parts={name: float(values[at]) for name, values in vars(seconds).items()},
        memory_bytes=float(looked.held[index]),
        memory_parts={name: float(values[at]) for name, values in vars(held).items()},
        fits=float(looked.chance[index]),
        stages=found.stages if found else None,
    )


def _grid_query(wish: Wish, model: Transformer) -> GridQuery:
    return GridQuery(
        model=model,
        count=wish.cluster.count,
        fast=domain(wish.cluster),
        batch=wish.global_batch,
        precision=wish.precision,
        layout=wish.layout,
        micro_batch=wish.micro_batch,
        ways=wish.ways,
        by_engine=wish.by_engine,
        kernels=wish.kernels,
        schedule=wish.schedule,
        states=wish.states,
        adapted=wish.adapted,
        counted=wish.counted,
    )


def largest_batch(plan: Plan, fitted: Fitted) -> int:
    """Return the largest micro-batch (a power of two) with which a plan fits in memory; 0 if it never fits."""
    sizes = [2**power for power in range(13)]
    cases = [replace(plan.case, training=replace(plan.case.training, micro_batch=float(size))) for size in sizes]
    available, k = plan.case.cluster.memory_bytes, fitted.constants
    if isinstance(plan.case.model, ConvNet):
        held = [sum(replica_memory(case, k).values()) for case in cases]
    elif plan.stages:
        held = [float(ranks_memory(case, k).total.max()) for case in cases]
    else:
        held = memory(columns_of(cases), k).total.tolist()
    sure = [probability(need, available, fitted.memory_spread) >= SURE for need in held]
    return max((size for size, fits in zip(sizes, sure, strict=True) if fits), default=0)
