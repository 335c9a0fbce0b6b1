"""Asynchronous replicas (a mode of dp): no rank waits for a slow one, within a bound on the staleness of updates.

Each rank steps by itself. Before a step it reads the shared parameters x. After its optimizer step it sends its
update d to all ranks. After round k of the exchange, x is the same on all ranks:

    x_k = x_(k-1) + 1/n sum_r d_r / max(1, a_r)        r: ranks with an update in round k

a_r is the staleness of an update: the largest number of steps that another rank applied since r read x. A rank waits if
its update would make the update of another rank older than `max_staleness` (bounded delay: Agarwal & Duchi 2011; Li et
al. 2014, The Parameter Server). A slow rank reads x again at each step, and blocks no other rank as long as the others
take at most `max_staleness` steps during one step of the slow rank. Old updates count less, by 1 / a (Zhang et al.
2016, Staleness-aware Async-SGD). With n updates in one round and plain SGD, a round equals a step of the whole batch.

Rounds are torch all-reduces over a separate gloo group in host memory, run by one thread of each rank, so a
rank that is computing also takes part, without an update. Costs: four more copies of the parameters in fp32 in
host memory (16 bytes a parameter), and up to n all-reduces of parameters where DDP has one of gradients; a rank
waits for the all-reduce that sends its update. The training algorithm differs from synchronous training.
"""

from __future__ import annotations

import atexit
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from threading import Condition, Thread
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout

_NONE = -1
_IDLE_S = 0.001  # pause after a round without updates
_MEETINGS = ("save", "load", "meet", "close")


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Settings of asynchronous replicas; table ``[asynchronous]`` of a recipe."""

    max_staleness: int | None = None  # largest staleness in steps; None: all ranks step together
    damping: bool = True  # old updates count less

    def __post_init__(self) -> None:
        most = self.max_staleness
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise UsageError(
                f"asynchronous.max_staleness = {most!r} is not allowed; it takes a whole number of steps from 1 on. "
                "To train without stale gradients, leave out [asynchronous]"
            )
        if not isinstance(self.damping, bool):
            raise UsageError(f"asynchronous.damping = {self.damping!r} is not allowed; it takes true or false")

    def check(self, layout: Layout, *, meets: bool) -> None:
        """Check that the layout has replicas and no other axis.

        Args:
            layout: The layout of the run.
            meets: Whether replicas synchronize every few steps (``[local]``), which excludes this mode.

        Raises:
            UsageError: The layout has no replicas or has other axes, or both modes are set.
        """
        if self.max_staleness is None:
            return
        if layout.in_use != ("dp",):
            raise UsageError(
                f"asynchronous.max_staleness = {self.max_staleness} with layout {layout}: "
                "[asynchronous] needs at least two replicas of the whole model; use a layout with dp only, such "
                "as dp=2, or leave "
                "[asynchronous] out"
            )
        if meets:
            raise UsageError("[asynchronous] and [local] are two ways to synchronize replicas; choose one of them")


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """The staleness of this rank's updates when they were applied, and how long the rank waited."""

    ages: dict[int, int]  # number of updates by staleness in steps
    waited_s: float  # for the exchange and for ranks whose updates would have become too old

    @property
    def updates(self) -> int:
        """The number of applied updates."""
        return sum(self.ages.values())

    @property
    def median(self) -> float | None:
        """The median staleness of the updates in steps; None without updates."""
        return median(Counter(self.ages).elements()) if self.ages else None

    @property
    def most(self) -> int | None:
        """The largest staleness of an update in steps; None without updates."""
        return max(self.ages, default=None)


@dataclass(frozen=True, slots=True)
class RankState:
    """The state of a rank, sent to all ranks before each round. Rounds are counted from 1; -1 stands for none."""

    read: int  # the last round before the rank read the parameters of its step; -1: between steps
    waits: bool  # whether that step is over and its update waits to be sent
    bound: int  # the round that all other ranks must have read before the update may be sent
    meets: int  # index in `_MEETINGS` of the call that the rank waits in; -1 for none


def admitted(states: Sequence[RankState]) -> list[int]:
    """Return the ranks whose updates go into a round: as many as possible within every rank's staleness bound."""
    going = {rank for rank, state in enumerate(states) if state.waits}
    while True:
        stay = [state.read for rank, state in enumerate(states) if rank not in going and state.read != _NONE]
        kept = {rank for rank in going if all(states[rank].bound <= read for read in stay)}
        if kept == going:
            return sorted(going)
        going = kept


class Rounds:
    """One rank's part of the exchange: shared parameters, the pending update, and the thread that runs the rounds."""

    def __init__(self, settings: Asynchronous, model: Any, world: Any) -> None:
        """Start the exchange thread.

        Args:
            settings: The staleness bound and the damping.
            model: The model, with the same parameters on all ranks.
            world: The ranks.
        """
        import torch

        self._ranks, self._rank = world.layout.dp, world.rank
        self._damping = settings.damping
        self._model = model
        self._group = torch.distributed.new_group(backend="gloo")
        self._parameters = [value for value in model.parameters() if value.requires_grad]
        count = sum(value.numel() for value in self._parameters)
        self._made, self._read, self._update, self._sent = (torch.zeros(count) for _ in range(4))
        self._copy(self._made)
        self._state = Condition()  # guards all attributes below
        self._round = 0
        self._applied = [0] * self._ranks  # number of applied updates of each rank
        self._since, self._waits = _NONE, False  # `read` and `waits` of this rank's next `RankState`
        self._seen = (0,) * self._ranks  # number of updates of each rank in the parameters that this rank read
        self._own: deque[int] = deque(maxlen=settings.max_staleness)  # the rounds of this rank's last updates
        self._meets, self._met = _NONE, 0
        self._ages: Counter[int] = Counter()
        self._waited_s, self._scheduled = 0.0, 0
        self._failed: BaseException | None = None
        self._thread = Thread(target=self._go, name="paceline-rounds", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def begin(self) -> None:
        """Copy the shared parameters into the model before a step."""
        import torch

        with self._state, torch.no_grad():
            self._check()
            self._read.copy_(self._made)
            self._since, self._seen = self._round, tuple(self._applied)
            torch._foreach_copy_(self._parameters, self._like_parameters(self._read))

    def after(self, step: int, applied: bool) -> None:
        """Send the update of a step to all ranks, and wait until it is applied.

        Args:
            step: Not used.
            applied: Whether the optimizer step was applied; if not, there is no update.
        """
        del step
        began = time.monotonic()
        with self._state:
            if applied:
                self._copy(self._update)
                self._update.sub_(self._read)
                self._waits = True
                self._state.notify_all()
                self._wait_for(lambda: not self._waits)
            self._since = _NONE
            self._waited_s += time.monotonic() - began

    def due(self) -> int:
        """Return how many global steps passed since the last call: applied updates of all ranks / number of ranks."""
        with self._state:
            passed = sum(self._applied) // self._ranks
        due, self._scheduled = passed - self._scheduled, passed
        return due

    def meet(self, what: str = "meet") -> None:
        """Wait for all ranks and all updates. Afterwards all ranks have the same parameters, and buffers are averaged.

        Args:
            what: The engine method that called; one of `_MEETINGS`.

        Raises:
            UsageError: Other ranks wait in another method.
        """
        import torch

        with self._state:
            self._since, self._meets, met = _NONE, _MEETINGS.index(what), self._met
            self._wait_for(lambda: self._met > met)
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, self._like_parameters(self._made))
            for buffer in self._model.buffers():
                if buffer.is_floating_point():
                    torch.distributed.all_reduce(buffer)
                    buffer.div_(self._ranks)

    def can_save(self, tried: int) -> None:
        """Wait for all ranks before saving, so that their parameters are the same."""
        del tried
        self.meet("save")

    def state(self) -> dict[str, Any]:
        """Return an empty dict: a checkpoint needs nothing besides the model and the optimizers."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take the loaded parameters of the model as the shared parameters, and wait for all ranks."""
        del state
        with self._state:
            self._copy(self._made)
        self.meet("load")

    def close(self) -> None:
        """Wait for all ranks a last time and end the exchange thread."""
        atexit.unregister(self.close)
        if self._thread.is_alive() and self._failed is None:
            self.meet("close")
            self._thread.join()

    def staleness(self) -> Staleness:
        """Return the staleness of all updates so far and the time waited."""
        with self._state:
            return Staleness(ages=dict(sorted(self._ages.items())), waited_s=self._waited_s)

    def _copy(self, flat: Any) -> None:
        """Copy the parameters of the model into a flat tensor."""
        import torch

        with torch.no_grad():
            torch._foreach_copy_(self._like_parameters(flat), self._parameters)

    def _like_parameters(self, flat: Any) -> list[Any]:
        parts = flat.split([value.numel() for value in self._parameters])
        return [part.view_as(value) for part, value in zip(parts, self._parameters, strict=True)]

    def _wait_for(self, condition: Any) -> None:
        self._state.wait_for(lambda: self._failed is not None or condition())
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _go(self) -> None:
        """Run rounds until all ranks close or one fails."""
        try:
            while self._take_part():
                pass
        except BaseException as error:  # raised again in the program's thread
            with self._state:
                self._failed = error
                self._state.notify_all()

    def _take_part(self) -> bool:
        """Run one round; return whether another one follows."""
        states = self._states()
        going = admitted(states)
        if going:
            self._make(going)
            return True
        meetings = {state.meets for state in states}
        if _NONE not in meetings:
            return self._end_meeting(meetings)
        with self._state:
            self._state.wait(_IDLE_S)
        return True

    def _states(self) -> list[RankState]:
        """Send the state of this rank to all ranks, and return the states of all."""
        import torch

        with self._state:
            full = len(self._own) == self._own.maxlen
            own = (self._since, self._waits, self._own[0] if full else _NONE, self._meets)
        table = torch.zeros(self._ranks, len(own), dtype=torch.int64)
        table[self._rank] = torch.tensor(own)
        torch.distributed.all_reduce(table, group=self._group)
        return [RankState(read, bool(waits), bound, meets) for read, waits, bound, meets in table.tolist()]

    def _make(self, going: Sequence[int]) -> None:
        """Apply the updates of the given ranks to the shared parameters, on all ranks."""
        import torch

        goes = self._rank in going
        if goes:
            others = zip(self._applied, self._seen, strict=True)
            age = max(now - seen for rank, (now, seen) in enumerate(others) if rank != self._rank)
            torch.mul(self._update, 1 / self._ranks / (max(1, age) if self._damping else 1), out=self._sent)
        else:
            self._sent.zero_()
        torch.distributed.all_reduce(self._sent, group=self._group)
        with self._state:
            self._made.add_(self._sent)
            self._round += 1
            for rank in going:
                self._applied[rank] += 1
            if goes:
                self._ages[age] += 1
                self._own.append(self._round)
                self._since, self._waits = _NONE, False
            self._state.notify_all()

    def _end_meeting(self, meetings: set[int]) -> bool:
        """Release all waiting ranks; return whether more rounds follow."""
        if len(meetings) > 1:
            names = " and ".join(f"{_MEETINGS[number]}()" for number in sorted(meetings))
            raise UsageError(
                f"ranks call {names} of the engine at the same time, because [asynchronous] ranks make different "
                "numbers of steps; save where all ranks arrive equally often, such as after an epoch"
            )
        with self._state:
            self._meets, self._met = _NONE, self._met + 1
            self._state.notify_all()
        return _MEETINGS.index("close") not in meetings
