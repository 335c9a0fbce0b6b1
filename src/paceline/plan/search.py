"""Which layout is best? All that divide, side by side; the fastest of those that surely fit.

Tensor parallelism stays within the fast links and divides the heads; experts within the replicas; a pipeline has at
least a block in every stage. What does not fit is counted by what would have been too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.plan.columns import Columns, Floats, columns_of, configurations, on
from paceline.plan.constants import Fitted
from paceline.plan.fits import SURE, probabilities
from paceline.plan.machines import domain
from paceline.plan.memory import Memory, memory
from paceline.plan.model import Transformer
from paceline.plan.setting import AXES, Case, Cluster, Kernels, Layout, Recompute, Sharded, Training
from paceline.plan.step import Step, step

_WAYS: tuple[Recompute, ...] = ("none", "cheap", "full")
_MOST_STAGES = 64


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be trained on which cluster.

    Attributes:
        global_batch: Samples of a step.
        layout: The only one to look at; None: all.
        micro_batch: The only one to look at; None: all.
        states: Bytes of a weight, of its gradient and of what the optimizer keeps for it.
        by_engine: Look only at what `paceline.train` can run: no experts' axis, at most three axes, `cp` with neither
            `tp` nor `pp`.
    """

    model: Transformer
    cluster: Cluster
    global_batch: int
    precision: str = "bf16"
    layout: Layout | None = None
    micro_batch: int | None = None
    ways: tuple[Recompute, ...] = _WAYS
    by_engine: bool = False
    kernels: Kernels = "fused"
    states: tuple[float, float, float] = (4.0, 4.0, 8.0)  # fp32 with autocast, as `paceline.train` keeps them


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One configuration with its prediction."""

    case: Case
    step_s: float
    step_parts: dict[str, float]
    memory_bytes: float  # as nvidia-smi shows it
    memory_parts: dict[str, float]
    fits: float  # probability

    @property
    def reserved_bytes(self) -> float:
        """What the allocator holds: all but the context."""
        return self.memory_bytes - self.memory_parts["context"]

    @property
    def allocated_bytes(self) -> float:
        """What tensors take."""
        return self.reserved_bytes - self.memory_parts["fragmentation"]

    @property
    def tokens_per_s(self) -> float:
        """Of the whole cluster."""
        model = self.case.model
        seq = model.seq if isinstance(model, Transformer) else 1
        return self.case.global_batch * seq / self.step_s


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search came to.

    Attributes:
        plans: Those that surely fit and are worth a look, fastest first: no other is faster and needs less memory.
        looked_at: How many there were.
        rejected: Why the others are not, with counts.
        nearest: Where none fits: the one that needs least.
    """

    plans: tuple[Plan, ...]
    looked_at: int
    rejected: dict[str, int]
    nearest: Plan


def search(wish: Wish, fitted: Fitted) -> Found:
    """Look at all configurations of a wish.

    Raises:
        UsageError: None divides the cluster, the batch and the model.
    """
    grid = _grid(_question(wish))
    refused = Counter(dict(grid.refused))
    if grid.columns is None:
        raise UsageError(
            f"no layout divides {wish.cluster.count} GPUs, {wish.model.layers} blocks, {wish.model.heads} heads and a "
            f"batch of {wish.global_batch} ({_in_words(refused)}); change --batch, or the number of GPUs"
        )
    c = on(grid.columns, wish.cluster, wish.precision)
    cases = _Cases(wish, grid.choices)
    seconds, held = step(c, fitted.constants), memory(c, fitted.constants)
    chance = probabilities(held.total, c.memory, fitted.memory_spread)
    sure = np.array(chance) >= SURE
    for index in np.flatnonzero(~sure):
        refused[_too_much(held, int(index))] += 1
    front = _front(seconds.total, held.total, sure)
    refused["slower than another that needs no more memory"] += int(sure.sum()) - len(front)
    least = int(np.argmin(held.total / c.memory))
    return Found(
        plans=tuple(_plan(cases[index], seconds, held, chance[index], index) for index in front),
        looked_at=len(grid.choices),
        rejected={why: count for why, count in refused.items() if count},
        nearest=_plan(cases[least], seconds, held, chance[least], least),
    )


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What the configurations of a wish depend on; clusters alike in size and links have the same ones."""

    model: Transformer
    count: int
    fast: int
    batch: int
    precision: str
    layout: Layout | None
    micro_batch: int | None
    ways: tuple[Recompute, ...]
    by_engine: bool
    kernels: Kernels
    states: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class _Grid:
    choices: tuple[tuple[Layout, Training], ...]
    columns: Columns | None
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Cases:
    """Configurations as cases, made when they are looked at."""

    wish: Wish
    choices: tuple[tuple[Layout, Training], ...]

    def __getitem__(self, index: int) -> Case:
        layout, training = self.choices[index]
        return Case(model=self.wish.model, cluster=self.wish.cluster, layout=layout, training=training)


def _question(wish: Wish) -> _Question:
    return _Question(
        model=wish.model,
        count=wish.cluster.count,
        fast=domain(wish.cluster),
        batch=wish.global_batch,
        precision=wish.precision,
        layout=wish.layout,
        micro_batch=wish.micro_batch,
        ways=wish.ways,
        by_engine=wish.by_engine,
        kernels=wish.kernels,
        states=wish.states,
    )


@lru_cache(maxsize=64)
def _grid(question: _Question) -> _Grid:
    refused: Counter[str] = Counter()
    choices: list[tuple[Layout, Training]] = []
    for layout in [question.layout] if question.layout else layouts(question.model, question.count, question.fast):
        if layout.ranks != question.count:
            raise UsageError(f"layout {layout} takes {layout.ranks} GPUs, and there are {question.count}")
        replicas = layout.dp * layout.shard
        if question.by_engine and not _run_by_engine(layout):
            refused["the engine does not run such a layout"] += 1
            continue
        if question.batch % replicas:
            refused["the batch is not divided by the replicas"] += 1
            continue
        choices += [(layout, training) for training in _trainings(question, layout, question.batch // replicas)]
    columns = configurations(question.model, choices) if choices else None
    return _Grid(choices=tuple(choices), columns=columns, refused=tuple(refused.items()))


def layouts(model: Transformer, count: int, fast: int) -> Iterator[Layout]:
    """Go through the layouts of so many GPUs that a model allows; `fast` of them are joined by fast links."""
    for tp, pp, cp in product(_divisors(count), repeat=3):
        if tp > fast or tp > model.kv_heads * 8 or model.heads % tp or pp > min(model.layers, _MOST_STAGES):
            continue
        if count % (tp * pp * cp) or cp > max(1, model.seq // 4096):
            continue
        replicas = count // (tp * pp * cp)
        for ep in _expert_axes(model, replicas * cp * tp):
            yield from _replicated(replicas, fast, {"tp": tp, "pp": pp, "cp": cp, "ep": ep})


def _replicated(replicas: int, fast: int, axes: dict[str, int]) -> Iterator[Layout]:
    """All replicas alike, weights sharded over all of them, or over those near by."""
    near = max(1, fast // axes["tp"] // axes["cp"])
    for shard in sorted({1, replicas, *([near] if replicas % near == 0 else [])}):
        yield Layout(dp=replicas // shard, shard=shard, **axes)


def _expert_axes(model: Transformer, room: int) -> list[int]:
    if not model.experts:
        return [1]
    return [ep for ep in _divisors(model.experts) if room % ep == 0 and ep <= room]


def _run_by_engine(layout: Layout) -> bool:
    used = {axis for axis in AXES if getattr(layout, axis) > 1}
    return "ep" not in used and len(used) <= 3 and not ("cp" in used and used & {"tp", "pp"})


def _trainings(question: _Question, layout: Layout, per_replica: int) -> Iterator[Training]:
    sizes = [size for size in _divisors(per_replica) if size & (size - 1) == 0]
    sharded: Sharded = "parameters" if layout.shard > 1 else "nothing"
    for size, way in product([question.micro_batch] if question.micro_batch else sizes, question.ways):
        if per_replica % size or (layout.pp > 1 and per_replica // size < layout.pp):
            continue
        yield Training(
            micro_batch=float(size),
            micro_steps=per_replica // size,
            precision=question.precision,
            recompute=way,
            sharded=sharded,
            kernels=question.kernels,
            attention="tuned",
            weight_bytes=question.states[0],
            gradient_bytes=question.states[1],
            optimizer_bytes=question.states[2],
        )


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _front(seconds: Floats, held: Floats, sure: NDArray[np.bool_]) -> list[int]:
    """Fastest first, each needing less memory than those before."""
    chosen, least = [], np.inf
    for index in np.lexsort((held, seconds)):
        if sure[index] and held[index] < least:
            chosen.append(int(index))
            least = held[index]
    return chosen


def _too_much(held: Memory, index: int) -> str:
    states = held.weights[index] + held.gradients[index] + held.optimizer[index]
    passing = held.activations[index] + held.logits[index]
    return f"does not surely fit, mostly for {'weights and optimizer' if states > passing else 'activations'}"


def _plan(case: Case, seconds: Step, held: Memory, chance: float, index: int) -> Plan:
    return Plan(
        case=case,
        step_s=float(seconds.total[index]),
        step_parts={name: float(values[index]) for name, values in vars(seconds).items()},
        memory_bytes=float(held.total[index]),
        memory_parts={name: float(values[index]) for name, values in vars(held).items()},
        fits=chance,
    )


def _in_words(refused: Counter[str]) -> str:
    return "; ".join(f"{count}: {why}" for why, count in refused.items()) or "none is possible"


def largest_batch(plan: Plan, fitted: Fitted) -> int:
    """Return the largest micro-batch, a power of two, with which a plan surely fits; 0 where none does."""
    sizes = [2**power for power in range(13)]
    cases = [replace(plan.case, training=replace(plan.case.training, micro_batch=float(size))) for size in sizes]
    c = columns_of(cases)
    chance = probabilities(memory(c, fitted.constants).total, c.memory, fitted.memory_spread)
    return max((size for size, fits in zip(sizes, chance, strict=True) if fits >= SURE), default=0)
