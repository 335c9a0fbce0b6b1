"""Pipelines: the order of the tasks of each rank, the simulation of pipelines, and predictions from simulations.

Schedules are those of `torch.distributed.pipelining`. GPipe: all forward passes, then all backward passes (Huang et al.
2019). 1F1B: first as many forward passes as ranks follow, then forward and backward passes in alternation. Interleaved:
each of p ranks has v stages (stages r, r + p, r + 2p, and so on), and runs rounds of p micro-batches (Narayanan et al.
2021). Zero-bubble: as interleaved, but with fewer forward passes at the start and a backward pass in two parts; the
part for the weights runs `rank` tasks later (ZB-1P of Qi et al. 2023).

In the simulation, each task starts when its rank and its input are ready: a forward pass waits for the previous stage,
a backward pass for the next one, and messages between ranks take time. A few rounds are simulated; later rounds repeat
the last one. The exposed part of a message counts as time of the pass that sends it, as in the closed form. The rest of
its time delays the next rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from paceline.core.errors import UsageError
from paceline.plan.cost.case import CHUNKED, Case, Schedule
from paceline.plan.cost.columns import Columns, Floats, columns_of
from paceline.plan.cost.constants import Constants
from paceline.plan.cost.memory import PeakMemory, memory_at
from paceline.plan.cost.partition import PipelineRank, blocks_per_stage
from paceline.plan.cost.step_time import (
    PipelinePace,
    StepTime,
    block_time,
    expert_s,
    head_s,
    sent_s,
    shard_s,
    step,
    tensor_s,
)
from paceline.plan.models.architecture import Transformer

_AHEAD = {"interleaved": 2, "zero-bubble": 1}  # forward passes ahead for each later rank


class Task(NamedTuple):
    """One pass of a stage over a micro-batch. The kinds `input` and `weight` are the halves of a split `backward`."""

    kind: Literal["forward", "backward", "input", "weight"]
    stage: int
    micro: int


class Pipe(NamedTuple):
    """A pipeline: its schedule, number of ranks, stages per rank (chunks) and micro-batches per step.

    Stage s is on rank s modulo `ranks`.
    """

    schedule: Schedule
    ranks: int
    chunks: int
    micro_steps: int


def check(pipe: Pipe) -> None:
    """Check that the number of micro-batches suits the schedule.

    Raises:
        UsageError: There are too few micro-batches, or an interleaved schedule needs a multiple of the number of ranks.
    """
    rounds = pipe.schedule in CHUNKED and pipe.micro_steps % pipe.ranks
    if pipe.micro_steps < pipe.ranks or rounds or pipe.chunks < 1:
        raise UsageError(
            f"{pipe.schedule} over {pipe.ranks} stages needs {'a multiple of' if rounds else 'at least'} {pipe.ranks} "
            f"micro-batches, but there are only {pipe.micro_steps}"
        )


def tasks_of_rank(pipe: Pipe, rank: int) -> list[Task]:
    """Return the tasks of a rank in the order in which the rank runs them.

    Raises:
        UsageError: The number of micro-batches does not suit the schedule.
    """
    check(pipe)
    if pipe.schedule in CHUNKED:
        return list(_interleaved(pipe, rank))
    ahead = pipe.micro_steps if pipe.schedule == "gpipe" else min(pipe.micro_steps, pipe.ranks - rank)
    forward = [Task("forward", rank, micro) for micro in range(pipe.micro_steps)]
    backward = [Task("backward", rank, micro) for micro in range(pipe.micro_steps)]
    turns = [task for pair in zip(backward, forward[ahead:], strict=False) for task in pair]
    return forward[:ahead] + turns + backward[pipe.micro_steps - ahead :]


def _interleaved(pipe: Pipe, rank: int) -> Iterator[Task]:
    passes = pipe.chunks * pipe.micro_steps
    ahead = min(passes, (pipe.chunks - 1) * pipe.ranks + _AHEAD[pipe.schedule] * (pipe.ranks - 1 - rank))
    split = pipe.schedule == "zero-bubble"
    late = rank if split else 0
    yield from (_forward(pipe, rank, turn) for turn in range(ahead))
    for turn in range(passes):
        if ahead + turn < passes:
            yield _forward(pipe, rank, ahead + turn)
        done = _backward(pipe, rank, turn)
        yield done._replace(kind="input") if split else done
        if split and turn >= late:
            yield _backward(pipe, rank, turn - late)._replace(kind="weight")
    yield from (_backward(pipe, rank, turn)._replace(kind="weight") for turn in range(passes - late, passes) if split)


def _forward(pipe: Pipe, rank: int, turn: int) -> Task:
    chunk, micro = _chunk_and_micro_batch(pipe, turn)
    return Task("forward", chunk * pipe.ranks + rank, micro)


def _backward(pipe: Pipe, rank: int, turn: int) -> Task:
    chunk, micro = _chunk_and_micro_batch(pipe, turn)
    return Task("backward", (pipe.chunks - 1 - chunk) * pipe.ranks + rank, micro)


def _chunk_and_micro_batch(pipe: Pipe, turn: int) -> tuple[int, int]:
    """Return the chunk (stage of the rank) and the micro-batch of the task with number `turn`.

    As many micro-batches as there are ranks pass a chunk before the next chunk starts.
    """
    rounds, within = divmod(turn, pipe.ranks * pipe.chunks)
    chunk, micro = divmod(within, pipe.ranks)
    return chunk, rounds * pipe.ranks + micro


def most_saved(tasks: Sequence[Task]) -> int:
    """Return the peak number of forward passes whose activations are still needed by a backward pass.

    If the backward pass is split, its part for the weights frees the activations.
    """
    kept = most = 0
    for task in tasks:
        kept += (task.kind == "forward") - (task.kind in ("backward", "weight"))
        most = max(most, kept)
    return most


_MOST_PLAYED = 64  # largest number of simulated micro-batches, in rounds of as many as ranks; two rounds at least
_KINDS = ("forward", "backward", "input", "weight")
_NOBODY = -1

Span = tuple[Task, float, float]  # a task, its begin and its end in seconds
Spans = tuple[tuple[Span, ...], ...]  # the spans of each rank


@dataclass(frozen=True, kw_only=True)
class StagePasses:
    """Seconds that each stage needs for one micro-batch, in pipeline order.

    Attributes:
        forward_s: The forward pass, with the exposed part of the message to the next stage.
        input_s: The part of the backward pass that the previous stage waits for.
        weight_s: The rest of the backward pass.
        sent_s: Delay of a message beyond its exposed part.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    sent_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SimulatedPipeline:
    """The result of a simulation.

    Attributes:
        pipe: The simulated pipeline.
        passes: The times of its stages.
        total_s: Time from the first pass to the last.
        busy_s: Compute time of each rank.
    """

    pipe: Pipe
    passes: StagePasses
    total_s: float
    busy_s: tuple[float, ...]

    @property
    def idle(self) -> float:
        """Return the share of the total time in which the busiest rank waits."""
        return 1 - max(self.busy_s) / self.total_s


def simulate(pipe: Pipe, passes: StagePasses) -> SimulatedPipeline:
    """Simulate a pipeline and return its total time and the compute time of each rank.

    Raises:
        UsageError: The number of micro-batches does not suit the schedule.
    """
    rounds = max(2, min(4, _MOST_PLAYED // pipe.ranks))
    few = _shortened(pipe, rounds)
    total = _end_s(few, passes)
    if few.micro_steps < pipe.micro_steps:
        fewer = _shortened(pipe, rounds - 1)
        each = (total - _end_s(fewer, passes)) / (few.micro_steps - fewer.micro_steps)
        total += (pipe.micro_steps - few.micro_steps) * each
    return SimulatedPipeline(pipe=pipe, passes=passes, total_s=total, busy_s=_busy(pipe, passes))


def spans(pipe: Pipe, passes: StagePasses) -> Spans:
    """Return begin and end of every task in seconds, by rank, for all micro-batches.

    Raises:
        UsageError: The number of micro-batches does not suit the schedule.
    """
    ends, durations = _ends(pipe, passes), _durations(passes)
    return tuple(
        tuple((task, end - durations[turn.lasts], end) for task, turn, end in zip(*rank, strict=True))
        for rank in zip(_task_orders(pipe), _scheduled_tasks(pipe), ends, strict=True)
    )


@cache
def micro_batches_saved(pipe: Pipe) -> tuple[float, ...]:
    """Return for each rank the largest number of micro-batches whose activations the rank keeps.

    With v chunks per rank, the activations of a micro-batch in one chunk count as 1/v.
    """
    few = _shortened(pipe, 2) if pipe.schedule != "gpipe" else pipe
    return tuple(most_saved(tasks) / pipe.chunks for tasks in _task_orders(few))


def tasks_of(pipe: Pipe) -> int:
    """Return the number of tasks in a simulation, as a measure of its cost."""
    few = _shortened(pipe, max(2, min(4, _MOST_PLAYED // pipe.ranks)))
    return few.ranks * few.chunks * few.micro_steps * (3 if pipe.schedule == "zero-bubble" else 2)


def _shortened(pipe: Pipe, rounds: int) -> Pipe:
    """Return the pipeline with fewer rounds of micro-batches, and with as many micro-batches left over."""
    over = pipe.micro_steps % pipe.ranks
    return pipe._replace(micro_steps=min(pipe.micro_steps, rounds * pipe.ranks + over))


def _busy(pipe: Pipe, passes: StagePasses) -> tuple[float, ...]:
    each = [sum(parts) for parts in zip(passes.forward_s, passes.input_s, passes.weight_s, strict=True)]
    return tuple(pipe.micro_steps * sum(each[rank :: pipe.ranks]) for rank in range(pipe.ranks))


class _ScheduledTask(NamedTuple):
    """A task with the indices of its duration, of its input and of its output."""

    lasts: int
    needs: int
    gives: int
    to: int  # rank that may continue after this task; `_NOBODY` if it is the same rank


def _end_s(pipe: Pipe, passes: StagePasses) -> float:
    return max(rank[-1] for rank in _ends(pipe, passes))


def _ends(pipe: Pipe, passes: StagePasses) -> list[list[float]]:
    """Return the times at which the tasks of each rank end.

    A rank runs until the input of its next task is missing, and continues when this input arrives.
    """
    durations, turns = _durations(passes), _scheduled_tasks(pipe)
    came: dict[int, float] = {_NOBODY: 0.0}
    ends: list[list[float]] = [[] for _ in turns]
    awake = deque(range(pipe.ranks))
    while awake:
        rank = awake.popleft()
        own = ends[rank]
        free = own[-1] if own else 0.0
        for lasts, needs, gives, to in turns[rank][len(own) :]:
            ready = came.get(needs)
            if ready is None:
                break
            free = (ready if ready > free else free) + durations[lasts]
            own.append(free)
            if to != _NOBODY:
                came[gives] = free + passes.sent_s
                awake.append(to)
            elif gives != _NOBODY:
                came[gives] = free
    return ends


def _durations(passes: StagePasses) -> tuple[float, ...]:
    """Return the durations of all tasks, ordered by kind of task and then by stage."""
    both = tuple(first + second for first, second in zip(passes.input_s, passes.weight_s, strict=True))
    return passes.forward_s + both + passes.input_s + passes.weight_s


@lru_cache(maxsize=256)
def _task_orders(pipe: Pipe) -> tuple[list[Task], ...]:
    return tuple(tasks_of_rank(pipe, rank) for rank in range(pipe.ranks))


@lru_cache(maxsize=256)
def _scheduled_tasks(pipe: Pipe) -> tuple[list[_ScheduledTask], ...]:
    return tuple([_scheduled_task(pipe, task) for task in tasks] for tasks in _task_orders(pipe))


def _scheduled_task(pipe: Pipe, task: Task) -> _ScheduledTask:
    stages, m = pipe.ranks * pipe.chunks, pipe.micro_steps
    lasts = _KINDS.index(task.kind) * stages + task.stage
    if task.kind == "weight":
        return _ScheduledTask(lasts, _NOBODY, _NOBODY, _NOBODY)
    onward = task.kind == "forward"
    first, last = task.stage == 0, task.stage == stages - 1
    here = task.stage * m + task.micro
    turned = stages * m + task.micro  # the loss of a micro-batch
    back = (stages + 1) * m + here  # the gradient that returns to this stage
    alone = pipe.ranks == 1
    if onward:
        to = _NOBODY if last or alone else (task.stage + 1) % pipe.ranks
        return _ScheduledTask(lasts, _NOBODY if first else here, turned if last else here + m, to)
    to = _NOBODY if first or alone else (task.stage - 1) % pipe.ranks
    return _ScheduledTask(lasts, turned if last else back, _NOBODY if first else back - m, to)


@dataclass(frozen=True, kw_only=True)
class PipelineStages:
    """The stages of a pipeline and their simulated schedule.

    Attributes:
        blocks: Number of blocks of each stage, in pipeline order; stage s is on rank s modulo the ranks.
        memory_bytes: Peak memory of each rank.
        run: The simulated schedule.
    """

    blocks: tuple[int, ...]
    memory_bytes: tuple[float, ...]
    run: SimulatedPipeline


@dataclass(frozen=True, kw_only=True)
class SimulatedCase:
    """The prediction of one case by simulation: step time, memory of the fullest rank, and stages.

    Arrays have the shape (1,).
    """

    step: StepTime
    memory: PeakMemory
    stages: PipelineStages


def pipe_of(case: Case) -> Pipe:
    """Return the pipeline of a case. With several stages per rank, the schedule 1F1B becomes the interleaved one."""
    how = case.training
    schedule: Schedule = "interleaved" if how.schedule == "1f1b" and how.chunks > 1 else how.schedule
    return Pipe(schedule, case.layout.pp, how.chunks, how.micro_steps)


def simulate_case(case: Case, k: Constants) -> SimulatedCase:
    """Return the prediction of a case by simulating its pipeline.

    Without balanced stages, all ranks have equally many blocks if the number of blocks is divisible.

    Raises:
        TypeError: The model is not a transformer.
        UsageError: The number of micro-batches does not suit the schedule.
    """
    pipe, blocks = pipe_of(case), _blocks(case)
    run = simulate(pipe, _passes(columns_of([case] * len(blocks)), k, blocks))
    busiest = int(np.argmax(run.busy_s))
    pace = PipelinePace(
        blocks=np.array([float(sum(blocks[busiest :: pipe.ranks]))]),
        has_head=np.array([float(busiest == pipe.ranks - 1)]),
        pipeline_s=np.array([run.total_s]),
    )
    held = ranks_memory(case, k)
    fullest = np.array([int(np.argmax(held.total))])
    return SimulatedCase(
        step=step(columns_of([case]), k, pace),
        memory=PeakMemory(**{name: values[fullest] for name, values in vars(held).items()}),
        stages=PipelineStages(blocks=blocks, memory_bytes=tuple(held.total.tolist()), run=run),
    )


def ranks_memory(case: Case, k: Constants) -> PeakMemory:
    """Return the predicted peak memory of each pipeline rank, of shape (ranks,).

    Raises:
        TypeError: The model is not a transformer.
        UsageError: The number of micro-batches does not suit the schedule.
    """
    pipe, blocks = pipe_of(case), _blocks(case)
    c = columns_of([case] * pipe.ranks)
    return memory_at(c, k, _places(pipe, blocks, tied=bool(c.tied[0])))


def _blocks(case: Case) -> tuple[int, ...]:
    if not isinstance(case.model, Transformer):
        raise TypeError(f"{case.model.name} is not a transformer")
    stages = case.layout.pp * case.training.chunks
    if not case.training.balanced and case.model.layers % stages == 0:
        return (case.model.layers // stages,) * stages
    return blocks_per_stage(case.model.layers, case.model.head_blocks, stages)


def _passes(c: Columns, k: Constants, blocks: Sequence[int]) -> StagePasses:
    each, n = block_time(c, k), np.array(blocks, np.float64)
    messages = [sum(pair) for pair in zip(tensor_s(c, k), expert_s(c, k), strict=True)]
    shard, sent = shard_s(c, k, each, n), sent_s(c, k)
    head = np.where(np.arange(len(n)) == len(n) - 1, head_s(c, k), 0.0)
    inner = np.ones(len(n))
    inner[-1] = 0.0  # the last stage sends nothing forward, the first nothing back
    forward = n * (each.forward.total + messages[0]) + shard[0] + head / 3 + inner * sent * k.stage_exposed
    backward = n * (each.backward.total + messages[1]) + shard[1] + head * 2 / 3 + inner[::-1] * sent * k.stage_exposed
    late = np.where(c.zero_bubble > 0, n * each.forward.matrix + head / 3, 0.0)
    return StagePasses(
        forward_s=_tuple(forward),
        input_s=_tuple(backward - late),
        weight_s=_tuple(late),
        sent_s=float(sent[0] * (1 - k.stage_exposed)),
    )


def _places(pipe: Pipe, blocks: Sequence[int], *, tied: bool) -> PipelineRank:
    """Return the part of the model on each rank; a tied embedding is on both the first and the last rank."""
    ranks = np.arange(pipe.ranks)
    first, last = ranks == 0, ranks == pipe.ranks - 1
    waiting = np.array(micro_batches_saved(pipe))
    logits = waiting if pipe.schedule in ("gpipe", "zero-bubble") else np.ones(pipe.ranks)
    return PipelineRank(
        blocks=np.array([float(sum(blocks[rank :: pipe.ranks])) for rank in range(pipe.ranks)]),
        kept=waiting,
        logits=np.where(last, logits, 0.0),
        ends=(1.0 if tied else 0.5) * (first.astype(np.float64) + last * (pipe.ranks > 1)),
    )


def _tuple(values: Floats) -> tuple[float, ...]:
    return tuple(values.tolist())
