"""How long does a pipeline take, and who waits? Its tasks are played: each begins when its rank and input are there.

A forward pass waits for the stage before, a backward one for the stage behind; between ranks, what is handed on takes a
while. Played are a few rounds; those after repeat the last one, as every rank goes through the same turns in each.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from paceline.plan.turns import Pipe, Task, most_kept, order

_MOST_PLAYED = 64  # micro-batches, in whole rounds of as many as there are ranks; two rounds at least
_KINDS = ("forward", "backward", "input", "weight")
_NOBODY = -1

Span = tuple[Task, float, float]  # a task, its begin and its end in seconds
Spans = tuple[tuple[Span, ...], ...]  # of each rank


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds of each stage on one micro-batch, in the order in which a batch goes through them.

    Attributes:
        forward_s: With what is handed on, as far as the rank waits for it.
        input_s: Of the backward pass, what the stage before waits for.
        weight_s: The rest of it.
        sent_s: From the end of a pass to where the next rank can use it, beyond what its rank waits for.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    sent_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of it.

    Attributes:
        pipe: What was played.
        passes: Of its stages.
        total_s: From the first pass to the last.
        busy_s: What each rank computes in that time.
    """

    pipe: Pipe
    passes: Passes
    total_s: float
    busy_s: tuple[float, ...]

    @property
    def idle(self) -> float:
        """Share of the time in which the busiest rank waits."""
        return 1 - max(self.busy_s) / self.total_s


def played(pipe: Pipe, passes: Passes) -> Played:
    """Play a pipeline.

    Raises:
        UsageError: The micro-batches do not go round.
    """
    rounds = max(2, min(4, _MOST_PLAYED // pipe.ranks))
    few = _shortened(pipe, rounds)
    total = _end_s(few, passes)
    if few.micro_steps < pipe.micro_steps:
        fewer = _shortened(pipe, rounds - 1)
        each = (total - _end_s(fewer, passes)) / (few.micro_steps - fewer.micro_steps)
        total += (pipe.micro_steps - few.micro_steps) * each
    return Played(pipe=pipe, passes=passes, total_s=total, busy_s=_busy(pipe, passes))


def spans(pipe: Pipe, passes: Passes) -> Spans:
    """Return when each rank does what, of all micro-batches.

    Raises:
        UsageError: The micro-batches do not go round.
    """
    ends, durations = _ends(pipe, passes), _durations(passes)
    return tuple(
        tuple((task, end - durations[turn.lasts], end) for task, turn, end in zip(*rank, strict=True))
        for rank in zip(_orders(pipe), _turns(pipe), ends, strict=True)
    )


@cache
def kept(pipe: Pipe) -> tuple[float, ...]:
    """Return how many micro-batches' activations each rank keeps at most; one chunk of v counts as 1/v."""
    few = _shortened(pipe, 2) if pipe.schedule != "gpipe" else pipe
    return tuple(most_kept(tasks) / pipe.chunks for tasks in _orders(few))


def tasks_of(pipe: Pipe) -> int:
    """Return how many tasks are played for a pipeline: what playing it costs."""
    few = _shortened(pipe, max(2, min(4, _MOST_PLAYED // pipe.ranks)))
    return few.ranks * few.chunks * few.micro_steps * (3 if pipe.schedule == "zero-bubble" else 2)


def _shortened(pipe: Pipe, rounds: int) -> Pipe:
    """Fewer micro-batches, as many more than whole rounds as there were."""
    over = pipe.micro_steps % pipe.ranks
    return pipe._replace(micro_steps=min(pipe.micro_steps, rounds * pipe.ranks + over))


def _busy(pipe: Pipe, passes: Passes) -> tuple[float, ...]:
    each = [sum(parts) for parts in zip(passes.forward_s, passes.input_s, passes.weight_s, strict=True)]
    return tuple(pipe.micro_steps * sum(each[rank :: pipe.ranks]) for rank in range(pipe.ranks))


class _Turn(NamedTuple):
    """A task with places of its own: of how long it lasts, of what it waits for, of what waits for it."""

    lasts: int
    needs: int
    gives: int
    to: int  # rank that may go on then; nobody, where it is this one


def _end_s(pipe: Pipe, passes: Passes) -> float:
    return max(rank[-1] for rank in _ends(pipe, passes))


def _ends(pipe: Pipe, passes: Passes) -> list[list[float]]:
    """Play every rank as far as its inputs are there; who is handed something is looked at again."""
    durations, turns = _durations(passes), _turns(pipe)
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


def _durations(passes: Passes) -> tuple[float, ...]:
    """By kind of task, then by stage."""
    both = tuple(first + second for first, second in zip(passes.input_s, passes.weight_s, strict=True))
    return passes.forward_s + both + passes.input_s + passes.weight_s


@lru_cache(maxsize=256)
def _orders(pipe: Pipe) -> tuple[list[Task], ...]:
    return tuple(order(pipe, rank) for rank in range(pipe.ranks))


@lru_cache(maxsize=256)
def _turns(pipe: Pipe) -> tuple[list[_Turn], ...]:
    return tuple([_turn(pipe, task) for task in tasks] for tasks in _orders(pipe))


def _turn(pipe: Pipe, task: Task) -> _Turn:
    stages, m = pipe.ranks * pipe.chunks, pipe.micro_steps
    lasts = _KINDS.index(task.kind) * stages + task.stage
    if task.kind == "weight":
        return _Turn(lasts, _NOBODY, _NOBODY, _NOBODY)
    onward = task.kind == "forward"
    first, last = task.stage == 0, task.stage == stages - 1
    here = task.stage * m + task.micro
    turned = stages * m + task.micro  # the loss of a micro-batch
    back = (stages + 1) * m + here  # what comes back to this stage
    alone = pipe.ranks == 1
    if onward:
        to = _NOBODY if last or alone else (task.stage + 1) % pipe.ranks
        return _Turn(lasts, _NOBODY if first else here, turned if last else here + m, to)
    to = _NOBODY if first or alone else (task.stage - 1) % pipe.ranks
    return _Turn(lasts, turned if last else back, _NOBODY if first else back - m, to)
