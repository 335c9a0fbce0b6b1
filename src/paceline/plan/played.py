"""What does a pipeline really wait for? Its stages, uneven as they are, are timed, weighed and played one by one.

What a rank waits for while a message goes out is part of its passes; the rest of the message's time is how much later
the next rank has it, as in the closed form's fitted share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.plan.columns import Columns, Floats, columns_of
from paceline.plan.constants import Constants
from paceline.plan.memory import Memory, memory_at
from paceline.plan.model import Transformer
from paceline.plan.pipeline import Passes, Played, kept, played
from paceline.plan.setting import Case
from paceline.plan.stages import Place, spread
from paceline.plan.step import Pace, Step, expert_s, sent_s, shard_s, step, tensor_s
from paceline.plan.turns import Pipe, Schedule
from paceline.plan.work import block, head_s


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The ranks of a pipeline.

    Attributes:
        blocks: Of each stage, in the order in which a batch goes through; stage s is on rank s modulo the ranks.
        memory_bytes: Of each rank.
        run: How the ranks take turns.
    """

    blocks: tuple[int, ...]
    memory_bytes: tuple[float, ...]
    run: Played


@dataclass(frozen=True, kw_only=True)
class Closer:
    """A prediction of one case with its pipeline played: of the fullest rank and of the step, each of shape (1,)."""

    step: Step
    memory: Memory
    stages: Stages


def pipe_of(case: Case) -> Pipe:
    """Return the pipeline of a case; 1F1B with chunks is interleaved."""
    how = case.training
    schedule: Schedule = "interleaved" if how.schedule == "1f1b" and how.chunks > 1 else how.schedule
    return Pipe(schedule, case.layout.pp, how.chunks, how.micro_steps)


def closer(case: Case, k: Constants) -> Closer:
    """Play the pipeline of a case; stages that are not balanced have as many blocks each where they divide.

    Raises:
        TypeError: The model is not a transformer.
        UsageError: The micro-batches do not go round its schedule.
    """
    pipe, blocks = pipe_of(case), _blocks(case)
    run = played(pipe, _passes(columns_of([case] * len(blocks)), k, blocks))
    busiest = int(np.argmax(run.busy_s))
    pace = Pace(
        blocks=np.array([float(sum(blocks[busiest :: pipe.ranks]))]),
        has_head=np.array([float(busiest == pipe.ranks - 1)]),
        pipeline_s=np.array([run.total_s]),
    )
    held = ranks_memory(case, k)
    fullest = np.array([int(np.argmax(held.total))])
    return Closer(
        step=step(columns_of([case]), k, pace),
        memory=Memory(**{name: values[fullest] for name, values in vars(held).items()}),
        stages=Stages(blocks=blocks, memory_bytes=tuple(held.total.tolist()), run=run),
    )


def ranks_memory(case: Case, k: Constants) -> Memory:
    """Predict the peak of each rank of a pipeline, of shape (ranks,).

    Raises:
        TypeError: The model is not a transformer.
        UsageError: The micro-batches do not go round its schedule.
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
    return spread(case.model.layers, case.model.head_blocks, stages)


def _passes(c: Columns, k: Constants, blocks: Sequence[int]) -> Passes:
    each, n = block(c, k), np.array(blocks, np.float64)
    messages = [sum(pair) for pair in zip(tensor_s(c, k), expert_s(c, k), strict=True)]
    shard, sent = shard_s(c, k, each, n), sent_s(c, k)
    head = np.where(np.arange(len(n)) == len(n) - 1, head_s(c, k), 0.0)
    inner = np.ones(len(n))
    inner[-1] = 0.0  # the last stage hands nothing on, the first nothing back
    forward = n * (each.forward.total + messages[0]) + shard[0] + head / 3 + inner * sent * k.stage_exposed
    backward = n * (each.backward.total + messages[1]) + shard[1] + head * 2 / 3 + inner[::-1] * sent * k.stage_exposed
    late = np.where(c.zero_bubble > 0, n * each.forward.matrix + head / 3, 0.0)
    return Passes(
        forward_s=_tuple(forward),
        input_s=_tuple(backward - late),
        weight_s=_tuple(late),
        sent_s=float(sent[0] * (1 - k.stage_exposed)),
    )


def _places(pipe: Pipe, blocks: Sequence[int], *, tied: bool) -> Place:
    """What each rank has; a tied embedding is on the first and on the last."""
    ranks = np.arange(pipe.ranks)
    first, last = ranks == 0, ranks == pipe.ranks - 1
    waiting = np.array(kept(pipe))
    logits = waiting if pipe.schedule in ("gpipe", "zero-bubble") else np.ones(pipe.ranks)
    return Place(
        blocks=np.array([float(sum(blocks[rank :: pipe.ranks])) for rank in range(pipe.ranks)]),
        kept=waiting,
        logits=np.where(last, logits, 0.0),
        ends=(1.0 if tied else 0.5) * (first.astype(np.float64) + last * (pipe.ranks > 1)),
    )


def _tuple(values: Floats) -> tuple[float, ...]:
    return tuple(values.tolist())
