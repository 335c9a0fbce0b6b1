"""Lists all configurations of a model on a cluster: layouts, micro-batches, recomputation and pipeline schedules.

Tensor parallelism stays within the fast links and divides the heads, expert parallelism divides the replicas, and each
pipeline stage has at least one block. GPipe needs more memory than 1F1B and takes as long, so it is tried only on
request. torch does not run zero-bubble schedules with compiled stages, so they are tried only on request or without
fused kernels. With `by_engine`, the rules of `paceline.train` decide which layouts are allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from itertools import product

from paceline.core.errors import UsageError
from paceline.core.layout import parse
from paceline.plan.cost.case import CHUNKED, PlannedLayout, Recompute, Schedule, Sharded, Training
from paceline.plan.cost.columns import Columns, configurations
from paceline.plan.models.adapters import Adapted
from paceline.plan.models.architecture import Kernels, Transformer
from paceline.plan.models.counted_step import CountedStep
from paceline.train.parallel.pp import Pipeline


@cache
def engine_refusal(layout: PlannedLayout) -> str:
    """Return the message of `paceline.train` if it does not support a layout; empty if it supports the layout."""
    try:
        parse(str(layout))
    except UsageError as error:
        return str(error)
    return ""


@cache
def engine_chunks(schedule: Schedule) -> int:
    """Return the number of pipeline stages per rank that `paceline.train` uses for a schedule."""
    return Pipeline(schedule=schedule).stages_each


def adapters_refusal(adapted: Adapted, layout: PlannedLayout) -> str:
    """Return why a layout does not support quantized frozen weights; empty if it does."""
    inner = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(layout, axis) > 1]
    if adapted.frozen_bits >= 16 or not inner:
        return ""
    return (
        f"frozen weights with fewer than 16 bits are supported only with the layout axes dp and shard, not with "
        f"{', '.join(inner)}"
    )


_MOST_STAGES = 64
_MORE_CHUNKS = 4  # number of stages per rank that is tried in addition to the engine's


@dataclass(frozen=True, kw_only=True)
class GridQuery:
    """The values on which the list of configurations depends.

    Clusters with equal numbers of GPUs and equal groups of fast links have the same query.
    """

    model: Transformer
    count: int
    fast: int
    batch: int
    precision: str
    layout: PlannedLayout | None
    micro_batch: int | None
    ways: tuple[Recompute, ...]
    by_engine: bool
    kernels: Kernels
    schedule: Schedule | None
    states: tuple[float, float, float]
    adapted: Adapted
    counted: CountedStep | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All configurations of a query (also as columns without machines), and the counts of refused ones by reason."""

    choices: tuple[tuple[PlannedLayout, Training], ...]
    columns: Columns | None
    refused: tuple[tuple[str, int], ...]


@lru_cache(maxsize=64)
def grid_of(question: GridQuery) -> Grid:
    """Return all configurations of a query.

    Raises:
        UsageError: The given layout needs another number of GPUs, or does not divide the model.
    """
    if question.layout:
        _check_divides(question.model, question.layout)
    refused: Counter[str] = Counter()
    choices: list[tuple[PlannedLayout, Training]] = []
    for layout in [question.layout] if question.layout else layouts(question.model, question.count, question.fast):
        if layout.ranks != question.count:
            raise UsageError(f"layout {layout} needs {layout.ranks} GPUs, and there are {question.count}")
        replicas = layout.dp * layout.shard
        if question.by_engine and engine_refusal(layout):
            refused[engine_refusal(layout) if question.layout else "paceline.train does not support the layout"] += 1
            continue
        if why := adapters_refusal(question.adapted, layout):
            if question.layout:
                raise UsageError(f"layout {layout}: {why}")
            refused["frozen weights with fewer than 16 bits are supported only with the layout axes dp and shard"] += 1
            continue
        if question.batch % replicas:
            refused["the batch cannot be split evenly over the replicas"] += 1
            continue
        found = [(layout, training) for training in _trainings(question, layout, question.batch // replicas)]
        if not found:
            refused[_why_none(question, layout, question.batch // replicas)] += 1
        choices += found
    columns = configurations(question.model, choices) if choices else None
    return Grid(choices=tuple(choices), columns=columns, refused=tuple(refused.items()))


def _check_divides(model: Transformer, layout: PlannedLayout) -> None:
    """Check that a given layout divides the model: its heads, tokens and experts, and that each stage has a block.

    Raises:
        UsageError: The size of an axis is not possible.
    """
    wholes = (
        ("tp", model.heads, "attention heads"),
        ("cp", model.seq, "tokens per sample"),
        ("ep", model.experts or 1, "experts"),
        ("ep", layout.dp * layout.shard * layout.cp * layout.tp, "ranks of dp, shard, cp and tp together"),
    )
    for axis, whole, of_what in wholes:
        size = getattr(layout, axis)
        if whole % size:
            fit = [each for each in _divisors(whole) if each <= 64]
            raise UsageError(
                f"{axis}={size} does not divide the {whole} {of_what} of {model.name}; allowed: "
                f"{', '.join(map(str, fit))}"
            )
    if layout.pp > model.layers:
        raise UsageError(
            f"pp={layout.pp} is larger than the number of blocks of {model.name} ({model.layers}); give a smaller pp"
        )


def layouts(model: Transformer, count: int, fast: int) -> Iterator[PlannedLayout]:
    """Yield the layouts on `count` GPUs that are possible with the model.

    Args:
        model: The model.
        count: Number of GPUs.
        fast: Number of GPUs that share fast links.
    """
    for tp, pp, cp in product(_divisors(count), repeat=3):
        if tp > fast or tp > model.kv_heads * 8 or model.heads % tp or pp > min(model.layers, _MOST_STAGES):
            continue
        if count % (tp * pp * cp) or cp > max(1, model.seq // 4096):
            continue
        replicas = count // (tp * pp * cp)
        for ep in _expert_axes(model, replicas * cp * tp):
            yield from _replicated(replicas, fast, {"tp": tp, "pp": pp, "cp": cp, "ep": ep})


def _replicated(replicas: int, fast: int, axes: dict[str, int]) -> Iterator[PlannedLayout]:
    """Yield layouts that differ in the sharding of weights over the replicas.

    Weights are not sharded, sharded over all replicas, or sharded over the replicas that fast links join.
    """
    near = max(1, fast // axes["tp"] // axes["cp"])
    for shard in sorted({1, replicas, *([near] if replicas % near == 0 else [])}):
        yield PlannedLayout(dp=replicas // shard, shard=shard, **axes)


def _expert_axes(model: Transformer, room: int) -> list[int]:
    if not model.experts:
        return [1]
    return [ep for ep in _divisors(model.experts) if room % ep == 0 and ep <= room]


def _trainings(question: GridQuery, layout: PlannedLayout, per_replica: int) -> Iterator[Training]:
    sizes = [size for size in _divisors(per_replica) if size & (size - 1) == 0]
    sharded: Sharded = "parameters" if layout.shard > 1 else "nothing"
    for size, way in product([question.micro_batch] if question.micro_batch else sizes, question.ways):
        if per_replica % size:
            continue
        for schedule, chunks in _turns(question, layout, per_replica // size, way):
            yield Training(
                micro_batch=float(size),
                micro_steps=per_replica // size,
                precision=question.precision,
                recompute=way,
                sharded=sharded,
                schedule=schedule,
                chunks=chunks,
                balanced=True,
                kernels=question.kernels,
                attention="tuned",
                weight_bytes=question.states[0],
                gradient_bytes=question.states[1],
                optimizer_bytes=question.states[2],
                counted=question.counted,
                **asdict(question.adapted),
            )


def _why_none(question: GridQuery, layout: PlannedLayout, per_replica: int) -> str:
    if question.micro_batch and per_replica % question.micro_batch:
        return f"{per_replica} samples per replica are not a multiple of the micro-batch {question.micro_batch}"
    if layout.pp > question.model.layers:
        return "the pipeline has more stages than the model has blocks"
    return (
        "a replica has fewer micro-batches than pipeline stages, or (interleaved schedule) its micro-batches are "
        "not a multiple of its stages"
    )


def _turns(
    question: GridQuery, layout: PlannedLayout, micro_steps: int, way: Recompute
) -> Iterator[tuple[Schedule, int]]:
    """Yield the pipeline schedules that are possible for a layout, each with its number of stages per rank."""
    if layout.pp == 1:
        yield "1f1b", 1
        return
    usual: tuple[Schedule, ...] = ("1f1b", "interleaved")
    if question.kernels == "eager":
        usual = (*usual, "zero-bubble")
    for schedule in [question.schedule] if question.schedule else usual:
        chunked = schedule in CHUNKED
        if micro_steps < layout.pp or (chunked and micro_steps % layout.pp):
            continue
        if schedule == "zero-bubble" and way != "none":  # both halves of a split backward pass would recompute
            continue
        own = engine_chunks(schedule)
        for chunks in sorted({own, _MORE_CHUNKS}) if chunked and not question.by_engine else [own]:
            if layout.pp * chunks <= question.model.layers:
                yield schedule, chunks


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})
