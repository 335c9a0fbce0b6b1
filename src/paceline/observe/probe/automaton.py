"""Which phase does each moment of a step belong to? A pure state machine from moments to step rows.

The training thread's moments nest: a forward inside an optimizer's closure is forward time, not optimizer
time. Time under no open phase is *idle* of the host program; where it falls says what it may be:

    step end ──gap──> fetch ──gap──> forward ──mid──> backward ──other──> optimizer ──> step end

What a fetch was for is known only once its batch is used: a forward without gradients makes it evaluation,
a forward with gradients makes it training data. So fetches and gradient-free forwards are kept *pending*
until the next telling moment (`_settle`).

A step ends with the last optimizer of a cycle. Which one that is, is learned: when an optimizer steps for
the second time, the one that stepped before it closed the cycle (a GAN has two). A program that builds no
optimizer object ends a step with each backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.observe.probe import gate as g
from paceline.record.layout import (
    FLAG_BY_BACKWARD,
    FLAG_EPOCH,
    FLAG_FRESH,
    FLAG_LOSS,
    FLAG_TAIL,
    SLOTS,
)

DATA_WAIT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, CHECKPOINT, EVALUATION, OTHER, GAP, MID = range(11)
assert len(SLOTS) == 11  # noqa: S101  the constants above index SLOTS

_FETCHING = -1  # pending: what the batch is for is not known yet
_UNGRADED = -2  # pending: a gradient-free forward
_PATIENCE = 512  # backward passes without an optimizer step, after which updates are taken to be made by hand
_NAN = float("nan")
_BEGINNERS = frozenset((g.ITER, g.FETCH, g.FORWARD, g.BACKWARD))


class Forward(NamedTuple):
    """What is known when an outermost forward begins."""

    graded: bool  # gradients are recorded
    training: bool  # the module is in training mode
    module: int  # id of the module
    samples: float | None  # leading dimension of the first tensor
    fresh: bool  # the first tensor is not the one of the forward before
    synced: bool  # its backward will reduce gradients over ranks
    frames: Any = None  # the stack, when it was wanted


class StepRow(NamedTuple):
    """One step, ready to be packed: times in ns, in the order of `layout.SLOTS`."""

    end_ns: int
    wall_ns: int
    slots_ns: tuple[int, ...]
    flags: int
    micro_steps: int
    synced: int
    fetches: int
    fetch_cpu_ns: float
    forward_blocked_ns: float
    backward_blocked_ns: float
    samples: float
    loss: Any


class _Part:
    """What has been counted between two optimizer steps."""

    __slots__ = (
        "backward_blocked",
        "fetch_cpu",
        "fetches",
        "flags",
        "forward_blocked",
        "loss",
        "micro_steps",
        "samples",
        "slots",
        "synced",
    )

    def __init__(self) -> None:
        self.slots = [0] * len(SLOTS)
        self.flags = 0
        self.micro_steps = 0
        self.synced = 0
        self.fetches = 0
        self.samples = 0.0
        self.fetch_cpu: float = _NAN
        self.forward_blocked: float = _NAN
        self.backward_blocked: float = _NAN
        self.loss: Any = None

    def add(self, other: _Part) -> None:
        """Append what came later."""
        self.slots = [a + b for a, b in zip(self.slots, other.slots, strict=True)]
        self.flags |= other.flags
        self.micro_steps += other.micro_steps
        self.synced += other.synced
        self.fetches += other.fetches
        self.samples += other.samples
        self.fetch_cpu = _sum(self.fetch_cpu, other.fetch_cpu)
        self.forward_blocked = _sum(self.forward_blocked, other.forward_blocked)
        self.backward_blocked = _sum(self.backward_blocked, other.backward_blocked)
        if other.loss is not None:
            self.loss = other.loss


def _sum(a: float, b: float) -> float:
    """Add two amounts of which either may be unknown (NaN)."""
    if a != a:
        return b
    return a if b != b else a + b


class LoaderUse:
    """How often one loader was asked, for what, and how long that took (ns)."""

    __slots__ = ("eval_fetches", "eval_wait_ns", "samples", "train_fetches", "train_wait_ns")

    def __init__(self) -> None:
        self.train_fetches = 0
        self.train_wait_ns = 0
        self.eval_fetches = 0
        self.eval_wait_ns = 0
        self.samples = 0.0


class Automaton:
    """Moments in, step rows out. Feed it in order of time; it reads no clock and touches nothing."""

    def __init__(self, on_row: Callable[[StepRow], None]) -> None:
        self._on_row = on_row
        self._mark: int | None = None
        self._begun_ns = 0  # when the open step began
        self.first_ns: int | None = None  # the first moment of all
        self._open: list[int] = []  # slots of the open phases
        self._cur = _Part()  # since the last optimizer step
        self._held = _Part()  # from the step's begin to the last optimizer step
        self._held_end = 0
        self._stage = GAP  # what idle time is now: GAP, MID or OTHER
        self._closure_at: int | None = None  # where in _open an optimizer that may run a closure stands
        self._seen: set[int] = set()  # optimizers that stepped in the open step
        self._last_optimizer: int | None = None
        self._closer: int | None = None
        self.optimizers = 0
        self._without_step = 0
        self._sync_next = False
        self._last_samples: float | None = None
        self._used_in_part = False
        self._trained: set[int] = set()
        self.loaders: dict[int, LoaderUse] = {}
        self.ungraded_forwards = 0
        self._phase_begun = 0
        self._fetch_begun = 0
        self._clear_pending()
        self._handlers = {
            g.ITER: self._fetch_begin,
            g.ITER + 1: self._iter_end,
            g.FETCH: self._fetch_begin,
            g.FETCH + 1: self._fetch_end,
            g.FORWARD: self._forward_begin,
            g.FORWARD + 1: self._forward_end,
            g.BACKWARD: self._backward_begin,
            g.BACKWARD + 1: self._backward_end,
            g.OPTIMIZER: self._optimizer_begin,
            g.OPTIMIZER + 1: self._optimizer_end,
            g.COMMUNICATION: lambda _: self._open.append(COMMUNICATION),
            g.COMMUNICATION + 1: self._close,
            g.SAVE: lambda _: self._open.append(CHECKPOINT),
            g.SAVE + 1: self._close,
            g.TRANSFER: lambda _: self._open.append(TRANSFER),
            g.TRANSFER + 1: self._close,
            g.TIDY: lambda _: self._open.append(OPTIMIZER),
            g.TIDY + 1: self._close,
            g.MADE_OPTIMIZER: self._made_optimizer,
        }

    # -- the public face -----------------------------------------------------------------------------

    def feed(self, moment: g.Moment) -> None:
        """Take one moment. What comes before the first batch, forward or backward is start-up."""
        if moment[1] != g.MADE_OPTIMIZER:
            if self._mark is None and moment[1] not in _BEGINNERS:
                return
            self._advance(moment[0])
        self._handlers[moment[1]](moment)

    def finish(self, now_ns: int) -> None:
        """The program ends: hand out the open step, then what came after it as a tail."""
        if self._mark is None:
            return
        self._advance(now_ns)
        if self._seen and self._closer is None:
            self._emit(self._held_end)
        elif self._seen:
            self._cur.add(self._take_held())
        self._settle(evaluation=self._pending_ungraded > 0)
        self._held = self._take_cur()
        self._held.flags |= FLAG_TAIL
        self._emit(now_ns)

    @property
    def slot(self) -> str:
        """The name of the slot in which the training thread is now, for the stack sampler."""
        if self._mark is None:
            return "startup"
        top = self._open[-1] if self._open else self._idle_slot()
        if top == _FETCHING:
            return "data_wait"
        return "evaluation" if top == _UNGRADED else SLOTS[top]

    # -- time ---------------------------------------------------------------------------------------

    def _advance(self, now: int) -> None:
        if self._mark is None:
            self._mark = self._begun_ns = self.first_ns = now
        passed = now - self._mark
        self._mark = now
        if not self._open:
            self._idle(passed)
            return
        top = self._open[-1]
        if top >= 0:
            self._cur.slots[top] += passed
        elif top == _FETCHING:
            self._pending_wait += passed
        else:
            self._pending_ungraded += passed

    def _idle_slot(self) -> int:
        if self._pending_ungraded:
            return _UNGRADED
        return self._stage

    def _idle(self, passed: int) -> None:
        if self._pending_ungraded:
            self._pending_after += passed
        elif self._pending_fetches:
            self._pending_trail += passed
        else:
            self._cur.slots[self._stage] += passed

    # -- pending: fetches and gradient-free forwards --------------------------------------------------

    def _clear_pending(self) -> None:
        self._pending_wait = 0  # fetching
        self._pending_trail = 0  # idle between a fetch and the use of its batch
        self._pending_ungraded = 0  # in gradient-free forwards
        self._pending_after = 0  # idle after them
        self._pending_evaluating = False  # one of them was of a trained module in eval mode
        self._pending_fetches: list[tuple[int, float | None, int, float | None]] = []

    def _settle(self, *, evaluation: bool) -> None:
        """Book what is pending: as evaluation, or as the beginning of training on a batch."""
        if not (self._pending_wait or self._pending_ungraded or self._pending_fetches):
            return
        slots = self._cur.slots
        if evaluation:
            slots[EVALUATION] += (
                self._pending_wait + self._pending_trail + self._pending_ungraded + self._pending_after
            )
        else:
            slots[DATA_WAIT] += self._pending_wait
            slots[self._stage] += self._pending_trail
            slots[EVALUATION if self._pending_evaluating else FORWARD] += self._pending_ungraded
            slots[EVALUATION if self._pending_evaluating else self._stage] += self._pending_after
        for fetch in self._pending_fetches:
            self._book_fetch(fetch, evaluation)
        self._clear_pending()

    def _book_fetch(self, fetch: tuple[int, float | None, int, float | None], evaluation: bool) -> None:
        loader, samples, wait, cpu = fetch
        use = self.loaders.setdefault(loader, LoaderUse())
        if evaluation:
            use.eval_fetches += 1
            use.eval_wait_ns += wait
            return
        use.train_fetches += 1
        use.train_wait_ns += wait
        use.samples += samples or 0.0
        self._cur.fetches += 1
        self._cur.samples += samples or 0.0
        if cpu is not None:
            self._cur.fetch_cpu = _sum(self._cur.fetch_cpu, cpu)

    # -- phases -------------------------------------------------------------------------------------

    def _close(self, _: g.Moment) -> None:
        if self._open:
            self._open.pop()

    def _fetch_begin(self, moment: g.Moment) -> None:
        if self._pending_ungraded:
            self._settle(evaluation=True)
        self._open.append(_FETCHING)
        self._fetch_begun = moment[0]

    def _iter_end(self, moment: g.Moment) -> None:
        self._close(moment)
        self._cur.flags |= FLAG_EPOCH

    def _fetch_end(self, moment: g.Moment) -> None:
        self._close(moment)
        _, _, loader, samples, cpu = moment
        if loader >= 0:
            self._pending_fetches.append((loader, samples, moment[0] - self._fetch_begun, cpu))

    def _forward_begin(self, moment: g.Moment) -> None:
        forward: Forward = moment[2]
        if not forward.graded:
            self.ungraded_forwards += 1
            self._pending_evaluating |= not forward.training and forward.module in self._trained
            self._open.append(_UNGRADED)
            return
        self._settle(evaluation=False)
        self._trained.add(forward.module)
        if self._stage == GAP and forward.fresh:
            self._cur.flags |= FLAG_FRESH
        if not self._used_in_part and forward.fresh and not self._seen:
            self._last_samples = forward.samples
        self._used_in_part = True
        self._sync_next |= forward.synced
        self._open.append(FORWARD)
        self._phase_begun = moment[0]

    def _forward_end(self, moment: g.Moment) -> None:
        graded = bool(self._open) and self._open[-1] == FORWARD
        self._close(moment)
        if not graded:
            self._pending_ungraded += not self._pending_ungraded  # an instant one counts as pending too
            return
        if moment[2] is not None:
            blocked = max(0, moment[0] - self._phase_begun - moment[2])
            self._cur.forward_blocked = _sum(self._cur.forward_blocked, blocked)
        self._set_stage(MID)

    def _set_stage(self, stage: int) -> None:
        """Say what idle time is from now on; inside an optimizer's closure, after a backward, it is the optimizer's."""
        self._stage = stage
        if self._closure_at is not None and self._closure_at < len(self._open):
            self._open[self._closure_at] = OPTIMIZER if stage == OTHER else stage

    def _backward_begin(self, moment: g.Moment) -> None:
        self._settle(evaluation=False)
        self._open.append(BACKWARD)
        self._phase_begun = moment[0]
        if moment[2] is not None:
            self._cur.loss = moment[2]

    def _backward_end(self, moment: g.Moment) -> None:
        self._close(moment)
        cur = self._cur
        cur.micro_steps += 1
        cur.synced += self._sync_next
        if moment[2] is not None:
            blocked = max(0, moment[0] - self._phase_begun - moment[2])
            cur.backward_blocked = _sum(cur.backward_blocked, blocked)
        if not cur.fetches and self._last_samples:
            cur.samples += self._last_samples
        self._last_samples, self._used_in_part, self._sync_next = None, False, False
        self._set_stage(OTHER)
        self._without_step += 1
        if not self.optimizers or self._without_step > _PATIENCE:
            self._step_by_backward(moment[0])

    # -- where steps end ----------------------------------------------------------------------------

    def _made_optimizer(self, _: g.Moment) -> None:
        self.optimizers += 1

    def _step_by_backward(self, now: int) -> None:
        self._held.add(self._take_cur())
        self._held.flags |= FLAG_BY_BACKWARD
        self._emit(now)

    def _optimizer_begin(self, moment: g.Moment) -> None:
        self.optimizers = max(self.optimizers, 1)
        # A closure runs forward and backward inside: until they have run, idle time is theirs.
        self._closure_at = len(self._open)
        self._open.append(self._stage if self._stage != OTHER else OPTIMIZER)

    def _optimizer_end(self, moment: g.Moment) -> None:
        self._close(moment)
        self._closure_at = None
        self._settle(evaluation=self._pending_ungraded > 0)
        self._without_step = 0
        self._stage = GAP
        optimizer: int = moment[2]
        repeated = optimizer in self._seen
        if self._closer is None and repeated:
            self._closer = self._last_optimizer
            self._emit(self._held_end)
            repeated = False
        self._held.add(self._take_cur())
        self._held_end = moment[0]
        self._last_optimizer = optimizer
        if self._closer is None or (optimizer != self._closer and not repeated):
            self._seen.add(optimizer)
            return
        self._closer = optimizer
        self._emit(moment[0])

    def _take_cur(self) -> _Part:
        part, self._cur = self._cur, _Part()
        return part

    def _take_held(self) -> _Part:
        part, self._held = self._held, _Part()
        return part

    def _emit(self, end_ns: int) -> None:
        part = self._take_held()
        if part.loss is not None:
            part.flags |= FLAG_LOSS
        row = StepRow(
            end_ns=end_ns,
            wall_ns=end_ns - self._begun_ns,
            slots_ns=tuple(part.slots),
            flags=part.flags,
            micro_steps=part.micro_steps,
            synced=part.synced,
            fetches=part.fetches,
            fetch_cpu_ns=part.fetch_cpu,
            forward_blocked_ns=part.forward_blocked,
            backward_blocked_ns=part.backward_blocked,
            samples=part.samples or _NAN,
            loss=part.loss,
        )
        self._begun_ns = end_ns
        self._seen.clear()
        self._stage = GAP
        self._on_row(row)
