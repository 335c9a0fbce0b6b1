"""In which order does a rank of a pipeline run its stages? As `torch.distributed.pipelining` does.

GPipe: all forward passes, then all backward ones (Huang et al. 2019). 1F1B: as many forward passes as there are ranks
behind, then one of each in turn. Interleaved: v stages a rank, p apart, in rounds of p micro-batches (Narayanan et al.
2021). Zero-bubble: as interleaved with fewer forward passes ahead, and the backward pass in two, of which the one for
weights, which nobody waits for, comes `rank` turns later (ZB-1P of Qi et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from paceline.core.errors import UsageError

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
CHUNKED = ("interleaved", "zero-bubble")  # those with several stages of a rank

_AHEAD = {"interleaved": 2, "zero-bubble": 1}  # forward passes ahead for each rank behind


class Task(NamedTuple):
    """One pass of a stage over a micro-batch; `input` and `weight` are the halves of a `backward` that is split."""

    kind: Literal["forward", "backward", "input", "weight"]
    stage: int
    micro: int


class Pipe(NamedTuple):
    """The pipeline a rank is in: stage s is on rank s modulo `ranks`."""

    schedule: Schedule
    ranks: int
    chunks: int
    micro_steps: int


def check(pipe: Pipe) -> None:
    """See that the micro-batches go round.

    Raises:
        UsageError: There are too few, or they are no multiple of the ranks where stages are interleaved.
    """
    rounds = pipe.schedule in CHUNKED and pipe.micro_steps % pipe.ranks
    if pipe.micro_steps < pipe.ranks or rounds or pipe.chunks < 1:
        raise UsageError(
            f"{pipe.schedule} over {pipe.ranks} stages needs {'a multiple of' if rounds else 'at least'} {pipe.ranks} "
            f"micro-batches, but there are only {pipe.micro_steps}"
        )


def order(pipe: Pipe, rank: int) -> list[Task]:
    """Return what a rank does, in its order.

    Raises:
        UsageError: The micro-batches do not go round.
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
    chunk, micro = _turn(pipe, turn)
    return Task("forward", chunk * pipe.ranks + rank, micro)


def _backward(pipe: Pipe, rank: int, turn: int) -> Task:
    chunk, micro = _turn(pipe, turn)
    return Task("backward", (pipe.chunks - 1 - chunk) * pipe.ranks + rank, micro)


def _turn(pipe: Pipe, turn: int) -> tuple[int, int]:
    """Chunk and micro-batch: a round of `ranks` micro-batches through each chunk, then the next round."""
    rounds, within = divmod(turn, pipe.ranks * pipe.chunks)
    chunk, micro = divmod(within, pipe.ranks)
    return chunk, rounds * pipe.ranks + micro


def most_kept(tasks: Sequence[Task]) -> int:
    """Return of how many passes at most a rank keeps activations at a time; of a split backward, until its end."""
    kept = most = 0
    for task in tasks:
        kept += (task.kind == "forward") - (task.kind in ("backward", "weight"))
        most = max(most, kept)
    return most
