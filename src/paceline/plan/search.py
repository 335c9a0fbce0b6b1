"""Which layout is best? All that divide, side by side; the fastest of those that surely fit.

All are predicted by closed forms. Those with a pipeline that come out at the front are then played, until nothing at
the front is left that was not. What does not fit is counted by what would have been too much.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.plan import optimizers
from paceline.plan.columns import Floats, columns_of, on
from paceline.plan.constants import Fitted
from paceline.plan.convstep import conv_step, held_by_replica, replicas
from paceline.plan.fits import SURE, probabilities, probability
from paceline.plan.grid import Question, grid_of
from paceline.plan.machines import domain
from paceline.plan.memory import Memory, memory
from paceline.plan.model import ConvNet, Model, Transformer
from paceline.plan.pipeline import tasks_of
from paceline.plan.played import Closer, Stages, closer, pipe_of, ranks_memory
from paceline.plan.setting import Adapted, Case, Cluster, Kernels, Layout, Recompute, Training
from paceline.plan.step import Step, step
from paceline.plan.turns import Schedule

_WAYS: tuple[Recompute, ...] = ("none", "cheap", "half", "full")
_MOST_TASKS = 100_000  # of pipelines that are played for one search
_ROOM = 0.85  # of what closed forms say a pipeline needs, some need: the first stage has fewer blocks than the fullest


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
    optimizer: str = optimizers.USUAL
    states: tuple[float, float, float] = (4.0, 4.0, 8.0)  # fp32 with autocast, as `paceline.train` keeps them
    adapted: Adapted = Adapted()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One configuration with its prediction."""

    case: Case
    step_s: float
    step_parts: dict[str, float]
    memory_bytes: float  # as nvidia-smi shows it
    memory_parts: dict[str, float]
    fits: float  # probability
    stages: Stages | None = None  # of a pipeline that was played

    @property
    def reserved_bytes(self) -> float:
        """What the allocator holds: all but the context."""
        return self.memory_bytes - self.memory_parts["context"]

    @property
    def allocated_bytes(self) -> float:
        """What tensors take."""
        return self.reserved_bytes - self.memory_parts["fragmentation"]

    @property
    def samples_per_s(self) -> float:
        """Of the whole cluster."""
        return self.case.global_batch / self.step_s

    @property
    def tokens_per_s(self) -> float | None:
        """Of the whole cluster; None where samples have none."""
        model = self.case.model
        return self.samples_per_s * model.seq if isinstance(model, Transformer) else None


@dataclass(frozen=True, kw_only=True)
class Found:
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


def search(wish: Wish, fitted: Fitted, most_tasks: int = _MOST_TASKS) -> Found:
    """Look at all configurations of a wish.

    Args:
        wish: What is to be trained on what.
        fitted: Constants of the formulas.
        most_tasks: Of pipelines that are played; 0: closed forms only.

    Raises:
        UsageError: None divides the cluster, the batch and the model.
    """
    if isinstance(wish.model, ConvNet):
        return _replicas(wish, wish.model, fitted)
    grid = grid_of(_question(wish, wish.model))
    refused = Counter(dict(grid.refused))
    if grid.columns is None:
        raise UsageError(
            f"no parallel layout splits {wish.cluster.count} GPUs, {wish.model.layers} blocks, {wish.model.heads} "
            f"heads and a "
            f"batch of {wish.global_batch} evenly ({_in_words(refused)}); change --batch, or the number of GPUs"
        )
    c = on(grid.columns, wish.cluster, wish.precision)
    cases = _Cases(wish, grid.choices)
    seconds, held = step(c, fitted.constants), memory(c, fitted.constants)
    chance = np.array(probabilities(held.total, c.memory, fitted.memory_spread))
    hopeful = np.array(probabilities(_ROOM * held.total, c.memory, fitted.memory_spread)) >= SURE
    looked = _Looked(seconds.total.copy(), held.total.copy(), chance, np.where(c.pp > 1, hopeful, chance >= SURE))
    played = _play(cases, looked, fitted, most_tasks)
    sure, front = looked.chance >= SURE, _front(looked)
    for index in np.flatnonzero(~sure):
        refused[_too_much(held, int(index))] += 1
    refused["slower than another layout that needs no more memory"] += int(sure.sum()) - len(front)
    least = int(np.argmin(looked.held / c.memory))
    return Found(
        plans=tuple(_plan(cases[index], (seconds, held), looked, played, index) for index in front),
        looked_at=len(grid.choices),
        rejected={why: count for why, count in refused.items() if count},
        nearest=_plan(cases[least], (seconds, held), looked, played, least),
        played=len(played),
    )


@dataclass(frozen=True)
class _Looked:
    """What is known of every configuration; where one is played, its entries are written anew."""

    seconds: Floats
    held: Floats
    chance: Floats
    hopeful: NDArray[np.bool_]  # it surely fits, or may when it is played


def _play(cases: _Cases, looked: _Looked, fitted: Fitted, most_tasks: int) -> dict[int, Closer]:
    """Play what is at the front, the fastest first, until nothing is there that was not or it has taken long enough."""
    played: dict[int, Closer] = {}
    tasks = 0
    while tasks < most_tasks:
        index = next((each for each in _front(looked) if each not in played and cases[each].layout.pp > 1), None)
        if index is None:
            break
        case = cases[index]
        tasks += tasks_of(pipe_of(case))
        found = played[index] = closer(case, fitted.constants)
        held = float(found.memory.total[0])
        looked.seconds[index], looked.held[index] = found.step.total[0], held
        looked.chance[index] = probability(held, case.cluster.memory_bytes, fitted.memory_spread)
        looked.hopeful[index] = looked.chance[index] >= SURE
    looked.hopeful[:] = looked.chance >= SURE
    return played


@dataclass(frozen=True)
class _Cases:
    """Configurations as cases, made when they are looked at."""

    wish: Wish
    choices: tuple[tuple[Layout, Training], ...]

    def __getitem__(self, index: int) -> Case:
        layout, training = self.choices[index]
        return Case(model=self.wish.model, cluster=self.wish.cluster, layout=layout, training=training)


def _front(looked: _Looked) -> list[int]:
    """Fastest first, each needing less memory than those before."""
    order = np.lexsort((looked.held, looked.seconds))
    order = order[looked.hopeful[order]]
    held = looked.held[order]
    before = np.minimum.accumulate(np.concatenate(([np.inf], held)))[:-1]
    chosen: list[int] = order[held < before].tolist()
    return chosen


def _too_much(held: Memory, index: int) -> str:
    states = held.weights[index] + held.gradients[index] + held.optimizer[index]
    passing = held.activations[index] + held.logits[index]
    return f"may not fit in memory, mostly because of {'weights and optimizer' if states > passing else 'activations'}"


def _plan(case: Case, closed: tuple[Step, Memory], looked: _Looked, played: dict[int, Closer], index: int) -> Plan:
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


def _question(wish: Wish, model: Transformer) -> Question:
    return Question(
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
    )


def _in_words(refused: Counter[str]) -> str:
    return "; ".join(f"{count}: {why}" for why, count in refused.items()) or "none possible"


def largest_batch(plan: Plan, fitted: Fitted) -> int:
    """Return the largest micro-batch, a power of two, with which a plan surely fits; 0 where none does."""
    sizes = [2**power for power in range(13)]
    cases = [replace(plan.case, training=replace(plan.case.training, micro_batch=float(size))) for size in sizes]
    available, k = plan.case.cluster.memory_bytes, fitted.constants
    if isinstance(plan.case.model, ConvNet):
        held = [sum(held_by_replica(case, k).values()) for case in cases]
    elif plan.stages:
        held = [float(ranks_memory(case, k).total.max()) for case in cases]
    else:
        held = memory(columns_of(cases), k).total.tolist()
    sure = [probability(need, available, fitted.memory_spread) >= SURE for need in held]
    return max((size for size, fits in zip(sizes, sure, strict=True) if fits), default=0)


def _replicas(wish: Wish, model: ConvNet, fitted: Fitted) -> Found:
    """Look at the batches of a convolutional network, a replica on every GPU."""
    cases = replicas(
        Case(
            model=model, layout=wish.layout or Layout(dp=wish.cluster.count), training=_loop(wish), cluster=wish.cluster
        ),
        wish.global_batch,
        wish.micro_batch,
    )
    plans = sorted((_replica(case, fitted) for case in cases), key=lambda plan: (plan.step_s, plan.memory_bytes))
    front: list[Plan] = []
    for plan in plans:
        if plan.fits >= SURE and (not front or plan.memory_bytes < front[-1].memory_bytes):
            front.append(plan)
    unsure = sum(plan.fits < SURE for plan in plans)
    counts = {
        "may not fit in memory, mostly because of activations": unsure,
        "slower than another layout that needs no more memory": len(plans) - unsure - len(front),
    }
    return Found(
        plans=tuple(front),
        looked_at=len(plans),
        rejected={why: count for why, count in counts.items() if count},
        nearest=min(plans, key=lambda plan: plan.memory_bytes),
        played=0,
    )


def _loop(wish: Wish) -> Training:
    weight, gradient, optimizer = wish.states
    return Training(
        micro_batch=1.0,
        precision=wish.precision,
        kernels=wish.kernels,
        weight_bytes=weight,
        gradient_bytes=gradient,
        optimizer_bytes=optimizer,
    )


def _replica(case: Case, fitted: Fitted) -> Plan:
    seconds, held = conv_step(case, fitted.constants), held_by_replica(case, fitted.constants)
    need = sum(held.values())
    return Plan(
        case=case,
        step_s=seconds.total,
        step_parts=asdict(seconds),
        memory_bytes=need,
        memory_parts=held,
        fits=probability(need, case.cluster.memory_bytes, fitted.memory_spread),
    )
