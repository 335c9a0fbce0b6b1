"""Which phase does each moment of a step belong to? A pure state machine from moments to step rows.

The training thread's moments nest: a forward inside an optimizer's closure is forward time, not optimizer
time. Time under no open phase is *idle* of the host program; where it falls says what it may be:

    step end ──gap──> fetch ──gap──> forward ──mid──> backward ──other──> optimizer ──> step end

What a fetch was for is known only once its batch is used: a forward without gradients makes it evaluation,
a forward with gradients makes it training data. So fetches and gradient-free forwards are kept *pending*
until the next telling moment (`_settle`).

A step ends with the last optimizer of a cycle. Which one that is, is learned: when an optimizer steps for
the second time, the one that stepped before it closed the cycle (a GAN has two). A program that builds no
optimizer object ends a step with each backward, and so does one whose optimizer steps unseen (compiled).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from paceline.observe.probe import gate as g
from paceline.observe.probe.part import (
    BACKWARD,
    CHECKPOINT,
    COMMUNICATION,
    DATA_WAIT,
    EVALUATION,
    FORWARD,
    GAP,
    MID,
    OPTIMIZER,
    OTHER,
    TRANSFER,
    Part,
    StepRow,
    known_sum,
    samples_of,
)
from paceline.observe.probe.pending import Fetch, LoaderUse, Pending
from paceline.record.layout import FLAG_BY_BACKWARD, FLAG_FRESH, FLAG_TAIL, SLOTS

__all__ = ["Automaton", "Forward", "LoaderUse", "StepRow"]

# Open phases whose slot is not known yet.
_FETCHING = -1
_UNGRADED = -2  # a gradient-free forward
_STEPPING = -3  # an optimizer, before it is known whether it runs a closure
_UNKNOWN = {_FETCHING: "data_wait", _UNGRADED: "evaluation", _STEPPING: "optimizer"}
_PATIENCE = 512  # backward passes without an optimizer step, after which updates are taken to be made by hand
_RENEWALS = 8  # of gradients without an optimizer step: it is made unseen, as by a compiled optimizer
_MOST_AHEAD = 2  # batches fetched ahead of their use that are kept count of
_BEGINNERS = frozenset((g.ITER, g.FETCH, g.FORWARD, g.BACKWARD))
_PLAIN = {g.COMMUNICATION: COMMUNICATION, g.SAVE: CHECKPOINT, g.TRANSFER: TRANSFER, g.TIDY: OPTIMIZER}


class Forward(NamedTuple):
    """What is known when an outermost forward begins."""

    graded: bool  # gradients are recorded
    training: bool  # the module is in training mode
    module: int  # id of the module
    samples: float | None  # leading dimension of the first tensor
    fresh: bool  # the first tensor is not the one of the forward before
    synced: bool  # its backward will reduce gradients over ranks
    frames: Any = None  # the stack, when it was wanted


class Automaton:
    """Moments in, step rows out. Feed it in order of time; it reads no clock and touches nothing."""

    def __init__(self, on_row: Callable[[StepRow], None]) -> None:
        self._on_row = on_row
        self._mark: int | None = None
        self._begun_ns = 0  # when the open step began
        self.first_ns: int | None = None  # the first moment of all
        self._open: list[int] = []  # slots of the open phases
        self._cur = Part()  # since the last optimizer step
        self._held: Part | None = None  # from the step's begin to the last optimizer step
        self._held_end = 0
        self._stage = GAP  # what idle time is now: GAP, MID or OTHER
        self._steppers: list[tuple[int, int]] = []  # open optimizers, and where in _open they stand
        self._stepping = 0  # time in an optimizer that may turn out to run a closure
        self._seen: set[int] = set()  # optimizers that stepped in the open step
        self._last_optimizer: int | None = None
        self._closer: int | None = None
        self.optimizers = 0
        self._without_step = 0
        self._tidied = False  # since the last backward
        self._renewed = 0  # backward passes on gradients that had been zeroed, since the last optimizer step
        self._sync_next = False
        self._last_samples: float | None = None
        self._ahead = 0  # batches that were fetched but not used yet
        self._used_in_part = False
        self._trained: set[int] = set()
        self.loaders: dict[int, LoaderUse] = {}
        self.ungraded_forwards = 0
        self._phase_before = 0  # in the slot of the open forward or backward, when it began
        self._fetch_begun = 0
        self._fetching = 0  # time in the open fetch
        self._pending = Pending()
        self._handlers: dict[int, Callable[[g.Moment], None]] = {
            g.ITER: self._iter_begin,
            g.ITER + 1: self._iter_end,
            g.FETCH: self._fetch_begin,
            g.FETCH + 1: self._fetch_end,
            g.FORWARD: self._forward_begin,
            g.FORWARD + 1: self._forward_end,
            g.BACKWARD: self._backward_begin,
            g.BACKWARD + 1: self._backward_end,
            g.OPTIMIZER: self._optimizer_begin,
            g.OPTIMIZER + 1: self._optimizer_end,
            g.MADE_OPTIMIZER: self._made_optimizer,
        }
        for code, slot in _PLAIN.items():
            self._handlers[code] = partial(self._plain_begin, slot)
            self._handlers[code + 1] = partial(self._plain_end, slot)

    # -- the public face -----------------------------------------------------------------------------

    def feed(self, moment: g.Moment) -> None:
        """Take one moment. What comes before the first batch, forward or backward is start-up."""
        code = moment[1]
        if code != g.MADE_OPTIMIZER:
            if self._mark is None and code not in _BEGINNERS:
                self._before_all(moment)
                return
            self._advance(moment[0])
        self._handlers[code](moment)

    def _before_all(self, moment: g.Moment) -> None:
        """Only that an optimizer is open matters already: the first forward may come in its closure."""
        if moment[1] == g.OPTIMIZER:
            self._optimizer_begin(moment)
        elif moment[1] == g.OPTIMIZER + 1:
            self._leave_optimizer(moment[2])

    def finish(self, now_ns: int) -> None:
        """The program ends: hand out the open step, then what came after it as a tail."""
        if self._mark is None:
            return
        self._advance(now_ns)
        if self._seen and self._closer is None:
            self._emit(self._held_end)
        self._settle(evaluation=self._pending.forwards > 0)
        self._hold().flags |= FLAG_TAIL
        self._emit(self._mark)

    @property
    def slot(self) -> str:
        """The name of the slot in which the training thread is now, for the stack sampler."""
        if self._mark is None:
            return "startup"
        if not self._open:
            evaluating = self._pending.forwards and self._pending.fetches
            return SLOTS[EVALUATION if evaluating else self._stage]
        top = self._open[-1]
        return SLOTS[top] if top >= 0 else _UNKNOWN[top]

    # -- time ---------------------------------------------------------------------------------------

    def _advance(self, now: int) -> None:
        if self._mark is None:
            self._mark = self._begun_ns = self.first_ns = now
        passed = now - self._mark
        if passed <= 0:  # moments of two threads may be noted out of order
            return
        self._mark = now
        top = self._open[-1] if self._open else None
        if top is None:
            if not (self._pending.expecting and self._pending.idle(passed)):
                self._cur.slots[self._stage] += passed
        elif top >= 0:
            self._cur.slots[top] += passed
        elif top == _FETCHING:
            self._fetching += passed
        elif top == _UNGRADED:
            self._pending.ungraded += passed
        else:
            self._stepping += passed

    def _close(self, *kinds: int) -> int | None:
        """Close the innermost open phase of these kinds, with what was left open inside; None: there is none."""
        open_ = self._open
        if open_ and open_[-1] in kinds:
            return open_.pop()
        for depth in range(len(open_) - 1, -1, -1):
            if open_[depth] in kinds:
                slot = open_[depth]
                del open_[depth:]
                return slot
        return None

    def _settle(self, *, evaluation: bool) -> None:
        """Book what is pending: as evaluation, or as the beginning of training on a batch."""
        pending = self._pending
        if self._fetching:
            pending.wait += self._fetching
            self._fetching = 0
        if pending.expecting or pending.wait or pending.ungraded or pending.started:
            pending.settle(self._cur, self._stage, self.loaders, evaluation=evaluation)

    # -- phases -------------------------------------------------------------------------------------

    def _plain_begin(self, slot: int, moment: g.Moment) -> None:
        self._tidied |= moment[1] == g.TIDY
        self._open.append(slot)

    def _plain_end(self, slot: int, _: g.Moment) -> None:
        self._close(slot)

    def _iter_begin(self, moment: g.Moment) -> None:
        if self._pending.forwards:
            self._settle(evaluation=True)
        self._open.append(_FETCHING)

    def _iter_end(self, moment: g.Moment) -> None:
        self._close(_FETCHING)
        self._pending.wait += self._fetching
        self._fetching = 0
        self._pending.started = True

    def _fetch_begin(self, moment: g.Moment) -> None:
        if self._pending.is_sure_evaluation:
            self._settle(evaluation=True)
        self._open.append(_FETCHING)
        self._fetch_begun = moment[0]

    def _fetch_end(self, moment: g.Moment) -> None:
        self._close(_FETCHING)
        pending = self._pending
        wait, self._fetching = self._fetching, 0
        _, _, loader, samples, cpu = moment
        if pending.forwards and (loader < 0 or pending.came_from(loader)):
            self._settle(evaluation=True)
        if loader >= 0:
            pending.add_fetch(Fetch(loader, samples_of(samples), moment[0] - self._fetch_begun, cpu))
        if pending.fetches:
            pending.wait += wait
        else:  # a loader's end, which stops its workers: it belongs to what that loader fed
            self._cur.slots[EVALUATION if pending.last_was_evaluation else DATA_WAIT] += wait

    def _forward_begin(self, moment: g.Moment) -> None:
        graded, training, module, samples, fresh, synced, _ = moment[2]
        if not graded:
            self.ungraded_forwards += 1
            self._pending.add_forward(evaluating=not training and module in self._trained)
            self._open.append(_UNGRADED)
            return
        self._settle(evaluation=False)
        if self._stepping:
            self._book_stepping(self._stage)
        self._trained.add(module)
        if fresh and self._stage == GAP:
            self._cur.flags |= FLAG_FRESH
        if fresh and not self._used_in_part:
            self._last_samples = samples
        self._used_in_part = True
        self._sync_next |= synced
        self._open.append(FORWARD)
        self._phase_before = self._cur.slots[FORWARD]

    def _forward_end(self, moment: g.Moment) -> None:
        if self._close(FORWARD, _UNGRADED) != FORWARD:
            return
        if moment[2] is not None:
            self._cur.forward_blocked = known_sum(self._cur.forward_blocked, self._blocked(FORWARD, moment[2]))
        self._set_stage(MID)

    def _blocked(self, slot: int, cpu: int) -> int:
        """Return the time off the CPU in the phase that ends now, without that in phases inside it (collectives)."""
        return max(0, self._cur.slots[slot] - self._phase_before - cpu)

    def _set_stage(self, stage: int) -> None:
        """Say what idle time is from now on; inside an optimizer's closure, after a backward, it is the optimizer's."""
        self._stage = stage
        if self._steppers and self._steppers[-1][1] < len(self._open):
            self._open[self._steppers[-1][1]] = OPTIMIZER if stage == OTHER else stage

    def _backward_begin(self, moment: g.Moment) -> None:
        self._settle(evaluation=False)
        if self._stepping:
            self._book_stepping(self._stage)
        self._open.append(BACKWARD)
        self._phase_before = self._cur.slots[BACKWARD]
        if moment[2] is not None:
            self._cur.loss = moment[2]

    def _backward_end(self, moment: g.Moment) -> None:
        self._close(BACKWARD)
        cur = self._cur
        cur.micro_steps += 1
        cur.synced += self._sync_next
        if moment[2] is not None:
            cur.backward_blocked = known_sum(cur.backward_blocked, self._blocked(BACKWARD, moment[2]))
        if not self._ahead and self._last_samples:
            cur.forward_samples += self._last_samples
        self._last_samples, self._used_in_part, self._sync_next = None, False, False
        self._set_stage(OTHER)
        self._without_step += 1
        self._renewed += self._tidied and not self._steppers  # a closure zeroes gradients for each of its backwards
        self._tidied = False
        if not self.optimizers or self._without_step > _PATIENCE or self._renewed > _RENEWALS:
            self._step_by_backward()

    # -- where steps end ----------------------------------------------------------------------------

    def _made_optimizer(self, _: g.Moment) -> None:
        self.optimizers += 1

    def _step_by_backward(self) -> None:
        self._settle(evaluation=False)
        self._hold().flags |= FLAG_BY_BACKWARD
        self._emit(self._mark or 0)

    def _optimizer_begin(self, moment: g.Moment) -> None:
        self.optimizers = max(self.optimizers, 1)
        self._leave_optimizer(moment[2])  # an exception may have cut it before
        self._steppers.append((moment[2], len(self._open)))
        # A closure runs forward and backward inside: until they have run, idle time is theirs.
        self._open.append(OPTIMIZER if self._stage == OTHER else _STEPPING)

    def _leave_optimizer(self, optimizer: int) -> None:
        """Close an optimizer's phase, if it is open, with what was left open inside."""
        for place, (stepper, depth) in enumerate(self._steppers):
            if stepper == optimizer:
                del self._steppers[place:], self._open[depth:]
                return

    def _book_stepping(self, slot: int) -> None:
        self._cur.slots[slot] += self._stepping
        self._stepping = 0

    def _optimizer_end(self, moment: g.Moment) -> None:
        optimizer: int = moment[2]
        self._leave_optimizer(optimizer)
        self._book_stepping(OPTIMIZER)
        self._settle(evaluation=self._pending.evaluating)
        self._without_step = self._renewed = 0
        self._stage = GAP
        if optimizer in self._seen:
            self._closer = self._last_optimizer
            self._emit(self._held_end)
        self._hold()
        self._held_end = self._mark or 0
        self._last_optimizer = optimizer
        self._seen.add(optimizer)
        if optimizer == self._closer:
            self._emit(self._held_end)

    def _hold(self) -> Part:
        """Append what was counted since the last optimizer step to the open step; return that."""
        if self._stepping:
            self._book_stepping(OPTIMIZER)
        part, self._cur = self._cur, Part()
        self._ahead = min(max(self._ahead + part.fetches - part.micro_steps, 0), _MOST_AHEAD)
        if self._held is None:
            self._held = part
        else:
            self._held.add(part)
        return self._held

    def _emit(self, end_ns: int) -> None:
        part, self._held = self._held or Part(), None
        begun, self._begun_ns = self._begun_ns, end_ns
        self._seen.clear()
        self._stage = GAP
        self._on_row(part.row(begun, end_ns))
