"""asynchronous: nobody waits for a slow rank, within a bound on how old gradients may be. A mode of dp.

Each rank steps by itself. Before a step it reads the parameters x that all have made together; what its optimizer makes
of them, d, goes to all as soon as it is there, and x is the same everywhere after the same round k:

    x_k = x_(k-1) + 1/n sum_r d_r / max(1, a_r)        r: ranks with an update in round k

a_r is the age of an update: the most steps that another rank applied since r read. A rank waits if its update would
make that of another one older than `max_staleness` (bounded delay: Agarwal & Duchi 2011; Li et al. 2014, The
Parameter Server). One that is always slow reads anew at each step, and stops nobody as long as the others take no more
steps in one of its own. Old updates count less, 1 / a (Zhang et al. 2016, Staleness-aware Async-SGD). With n updates in
one round and plain SGD it is a step of the whole batch.

Rounds are all-reduces of torch's, made by a thread of each rank over a group of its own (gloo, in host memory): a rank
that is computing takes part with nothing. Costs four more copies of the parameters in fp32 in host memory (16 bytes
a parameter), and up to n all-reduces of parameters where DDP has one of gradients; a rank waits for the one that takes
its update. Other mathematics than synchronous training.
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
_IDLE_S = 0.001  # between rounds in which nobody had an update
_MEETINGS = ("save", "load", "meet", "close")


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """How far ranks may be apart; table ``[asynchronous]`` of a recipe."""

    max_staleness: int | None = None  # steps; None: all ranks step together
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
        """See that there are replicas, and nothing else.

        Args:
            layout: Of the run.
            meets: Whether replicas meet every so many steps, which is another mode.

        Raises:
            UsageError: The layout has none, or other axes, or both modes are asked for.
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
    """How old this rank's updates were when they were applied, and how long it waited."""

    ages: dict[int, int]  # number of updates by age in steps
    waited_s: float  # for the exchange, and for ranks whose updates would have become too old

    @property
    def updates(self) -> int:
        """How many were applied."""
        return sum(self.ages.values())

    @property
    def median(self) -> float | None:
        """Age of the update in the middle, in steps; None where none was applied."""
        return median(Counter(self.ages).elements()) if self.ages else None

    @property
    def most(self) -> int | None:
        """Age of the oldest one, in steps; None where none was applied."""
        return max(self.ages, default=None)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank says of itself before a round; rounds are counted from 1, -1 is none."""

    read: int  # after which round it read what its step began with; -1: it is in no step
    waits: bool  # whether that step is over, and its update waits
    bound: int  # in which round the update went that all must have read before this one goes
    meets: int  # which of `_MEETINGS` it waits in


def admitted(offers: Sequence[Offer]) -> list[int]:
    """Return the ranks whose updates go into a round: as many as can without making another rank's too old."""
    going = {rank for rank, offer in enumerate(offers) if offer.waits}
    while True:
        stay = [offer.read for rank, offer in enumerate(offers) if rank not in going and offer.read != _NONE]
        kept = {rank for rank in going if all(offers[rank].bound <= read for read in stay)}
        if kept == going:
            return sorted(going)
        going = kept


class Rounds:
    """One rank's part: the parameters made together, the update on its way, and the thread that takes it there."""

    def __init__(self, settings: Asynchronous, model: Any, world: Any) -> None:
        """Begin with a model that is the same on all ranks."""
        import torch

        self._ranks, self._rank = world.layout.dp, world.rank
        self._damping = settings.damping
        self._model = model
        self._group = torch.distributed.new_group(backend="gloo")
        self._parameters = [value for value in model.parameters() if value.requires_grad]
        count = sum(value.numel() for value in self._parameters)
        self._made, self._read, self._update, self._sent = (torch.zeros(count) for _ in range(4))
        self._copy(self._made)
        self._state = Condition()  # guards all below
        self._round = 0
        self._applied = [0] * self._ranks  # updates of each rank
        self._since, self._waits = _NONE, False  # `read` and `waits` of the offer
        self._seen = (0,) * self._ranks  # updates of each rank that were read
        self._own: deque[int] = deque(maxlen=settings.max_staleness)  # rounds of this rank's last updates
        self._meets, self._met = _NONE, 0
        self._ages: Counter[int] = Counter()
        self._waited_s, self._scheduled = 0.0, 0
        self._failed: BaseException | None = None
        self._thread = Thread(target=self._go, name="paceline-rounds", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def begin(self) -> None:
        """Read the parameters."""
        import torch

        with self._state, torch.no_grad():
            self._check()
            self._read.copy_(self._made)
            self._since, self._seen = self._round, tuple(self._applied)
            torch._foreach_copy_(self._parameters, self._like_parameters(self._read))

    def after(self, step: int, applied: bool) -> None:
        """Give the update of a step away, if it was applied, and wait until it has gone."""
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
        """Return how many steps of all ranks have passed since it was last asked: updates divided by ranks."""
        with self._state:
            passed = sum(self._applied) // self._ranks
        due, self._scheduled = passed - self._scheduled, passed
        return due

    def meet(self, what: str = "meet") -> None:
        """Wait for all ranks and all updates; parameters are the same then, and buffers their means.

        Raises:
            UsageError: Other ranks meet for something else.
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
        """Meet the others, so that all have what is saved."""
        del tried
        self.meet("save")

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside model and optimizers: nothing."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint that the model has been given."""
        del state
        with self._state:
            self._copy(self._made)
        self.meet("load")

    def close(self) -> None:
        """Meet the others for the last time."""
        atexit.unregister(self.close)
        if self._thread.is_alive() and self._failed is None:
            self.meet("close")
            self._thread.join()

    def staleness(self) -> Staleness:
        """Return how old updates were up to now."""
        with self._state:
            return Staleness(ages=dict(sorted(self._ages.items())), waited_s=self._waited_s)

    def _copy(self, flat: Any) -> None:
        """Put the parameters of the model into a row."""
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
        """Take part in rounds until all ranks close or one is gone."""
        try:
            while self._take_part():
                pass
        except BaseException as error:  # it is the program's to hear of
            with self._state:
                self._failed = error
                self._state.notify_all()

    def _take_part(self) -> bool:
        """Take part in a round; return whether another one comes."""
        offers = self._offers()
        going = admitted(offers)
        if going:
            self._make(going)
            return True
        meetings = {offer.meets for offer in offers}
        if _NONE not in meetings:
            return self._end_meeting(meetings)
        with self._state:
            self._state.wait(_IDLE_S)
        return True

    def _offers(self) -> list[Offer]:
        """Tell all ranks of this one, and hear of them."""
        import torch

        with self._state:
            full = len(self._own) == self._own.maxlen
            own = (self._since, self._waits, self._own[0] if full else _NONE, self._meets)
        table = torch.zeros(self._ranks, len(own), dtype=torch.int64)
        table[self._rank] = torch.tensor(own)
        torch.distributed.all_reduce(table, group=self._group)
        return [Offer(read, bool(waits), bound, meets) for read, waits, bound, meets in table.tolist()]

    def _make(self, going: Sequence[int]) -> None:
        """Apply updates on all ranks."""
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
        """Let all ranks go on; return whether rounds do."""
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
