"""The step state machine: it converts the program's events into step rows with the time in each phase.

Events of the training thread nest: a forward inside an optimizer's closure is forward time, not optimizer time. Time
without an open phase is *idle* time of the host program; the position of the idle time decides its slot:

    step end ──gap──> fetch ──gap──> forward ──mid──> backward ──other──> optimizer ──> step end

The purpose of a fetch is known only when its batch is used: a forward without gradients shows that the batch is for
evaluation, a forward with gradients that it is for training. Fetches and gradient-free forwards are therefore *pending*
until a later event decides (`_settle`).

A step ends with the last optimizer of a cycle. The state machine learns which optimizer this is: when an optimizer
steps for the second time, the optimizer that stepped before was the last of the cycle (a GAN has two optimizers). In a
program without optimizer objects, each backward ends a step. If optimizer steps are invisible (compiled), changed
parameters (`updates.UnseenUpdates`) show that a step ended with the previous backward.

A forward with gradients may be an evaluation whose author forgot ``no_grad``. Counts from this forward on are stored
separately (`PossibleEvaluation`) until a backward, an update or the end of a pass over a loader decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.steps.parts import (
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
from paceline.inprocess.recorder.steps.pending import Fetch, LoaderUse
from paceline.inprocess.recorder.steps.time_booking import FETCHING, STEPPING, UNGRADED, TimeBooking
from paceline.record.layout import FLAG_BY_BACKWARD, FLAG_FRESH, FLAG_TAIL, SLOTS

__all__ = ["Automaton", "Forward", "LoaderUse", "StepRow"]

_UNKNOWN = {FETCHING: "data_wait", UNGRADED: "evaluation", STEPPING: "optimizer"}
_PATIENCE = 4096  # backward passes without an optimizer step, after which updates are assumed to be made by hand
_MOST_AHEAD = 2  # upper limit of the count of batches fetched ahead of their use
_BEGINNERS = frozenset((g.ITER, g.FETCH, g.FORWARD, g.BACKWARD))
_PLAIN = {g.COMMUNICATION: COMMUNICATION, g.SAVE: CHECKPOINT, g.TRANSFER: TRANSFER, g.TIDY: OPTIMIZER}


class Forward(NamedTuple):
    """The details of the start of an outermost forward."""

    graded: bool  # gradients are recorded
    training: bool  # the module is in training mode
    module: int  # id of the module
    samples: float | None  # leading dimension of the first tensor
    fresh: bool  # the first tensor differs from that of the previous forward
    synced: bool  # its backward will reduce gradients over ranks
    frames: Any = None  # the stack, if it was requested


class Automaton(TimeBooking):
    """Converts events into step rows. Events must be in time order. It reads no clock and has no other side effects."""

    def __init__(self, on_row: Callable[[StepRow], None]) -> None:
        super().__init__()
        self._on_row = on_row
        self._held: Part | None = None  # from the start of the step to the last optimizer step
        self._held_end = 0
        self._seen: set[int] = set()  # optimizers that stepped in the current step
        self.last_optimizer: int | None = None  # the last optimizer with a visible step
        self._closer: int | None = None
        self.optimizers = 0
        self._stepped = False  # an optimizer step after a backward was visible
        self._unseen = False  # parameters were updated without a visible optimizer step
        self._ahead = 0  # fetched batches that were not used yet
        self._trained: set[int] = set()
        self.rollouts: set[int] = set()  # modules whose next input depends on their output, through an environment
        self.ungraded_forwards = 0
        self._fetch_begun = 0
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
            g.UPDATED: self._updated,
        }
        for code, slot in _PLAIN.items():
            self._handlers[code] = partial(self._plain_begin, slot)
            self._handlers[code + 1] = partial(self._plain_end, slot)

    # -- the public face -----------------------------------------------------------------------------

    def feed(self, moment: g.Moment) -> None:
        """Process one event. Events before the first batch, forward or backward belong to start-up."""
        code = moment[1]
        if code != g.MADE_OPTIMIZER:
            if self._mark is None and code not in _BEGINNERS:
                self._before_all(moment)
                return
            self._advance(moment[0])
        self._handlers[code](moment)

    def _before_all(self, moment: g.Moment) -> None:
        """Process an early event: only open optimizers matter, because the first forward may be in a closure."""
        if moment[1] == g.OPTIMIZER:
            self._optimizer_begin(moment)
        elif moment[1] == g.OPTIMIZER + 1:
            self._leave_optimizer(moment[2])

    def finish(self, now_ns: int) -> None:
        """Emit the open step and then a tail row with the time after it, at the end of the program."""
        if self._mark is None:
            return
        self._advance(now_ns)
        if self._seen and self._closer is None:
            self._emit(self._held_end)
        self._settle(evaluation=self._pending.forwards > 0)
        self._decide(evaluation=self._possible is not None and self._possible.is_likely)
        self._hold().flags |= FLAG_TAIL
        self._emit(self._mark)

    @property
    def slot(self) -> str:
        """The name of the training thread's current slot, for the stack sampler."""
        if self._mark is None:
            return "startup"
        if self._possible is not None and self._possible.is_likely:
            return SLOTS[EVALUATION]
        if not self._open:
            if self._pending.forwards:
                return SLOTS[MID if self._pending.is_rollout else EVALUATION]
            return SLOTS[self._stage]
        top = self._open[-1]
        return SLOTS[top] if top >= 0 else _UNKNOWN[top]

    # -- phases -------------------------------------------------------------------------------------

    def _plain_begin(self, slot: int, moment: g.Moment) -> None:
        self._open.append(slot)

    def _plain_end(self, slot: int, _: g.Moment) -> None:
        self._close(slot)

    def _iter_begin(self, moment: g.Moment) -> None:
        if self._pending.forwards:
            self._settle(evaluation=True)
        self._end_pass()
        self._open.append(FETCHING)

    def _iter_end(self, moment: g.Moment) -> None:
        self._close(FETCHING)
        self._pending.wait += self._fetching
        self._fetching = 0
        self._pending.started = True

    def _fetch_begin(self, moment: g.Moment) -> None:
        if self._pending.is_sure_evaluation:
            self._settle(evaluation=True)
        if self._possible is not None and not self._possible.over:
            self._close_batch()
        self._open.append(FETCHING)
        self._fetch_begun = moment[0]

    def _fetch_end(self, moment: g.Moment) -> None:
        self._close(FETCHING)
        pending = self._pending
        wait, self._fetching = self._fetching, 0
        _, _, loader, samples, cpu = moment
        if pending.forwards and (loader < 0 or pending.came_from(loader)):
            self._settle(evaluation=True)
        if loader >= 0:
            pending.add_fetch(Fetch(loader, samples_of(samples), moment[0] - self._fetch_begun, cpu))
        if pending.fetches:
            pending.wait += wait
        else:  # the end of a loader, which stops its workers, belongs to the phase of the loader's batches
            self._cur.slots[EVALUATION if pending.last_was_evaluation else DATA_WAIT] += wait
        if loader < 0:
            self._end_pass()

    def _forward_begin(self, moment: g.Moment) -> None:
        graded, training, module, samples, fresh, synced, _ = moment[2]
        if not graded:
            self.ungraded_forwards += 1
            evaluating = not training and module in self._trained and module not in self.rollouts
            self._pending.add_forward(evaluating=evaluating)
            self._open.append(UNGRADED)
            return
        self._suspect(module, training)
        self._settle(evaluation=False)
        if self._stepping:
            self._book_stepping(self._stage)
        self._trained.add(module)
        if training:
            self._in_training_mode.add(module)
        if fresh and self._stage == GAP:
            self._cur.flags |= FLAG_FRESH
        if fresh and not self._used_in_part:
            self._last_samples = samples
        self._used_in_part = True
        if synced:
            self._reducing.add(module)
        if self._possible is None and not self._steppers:
            self._unused.add(self._cur, samples)
        else:
            self._unused.clear()
        self._open.append(FORWARD)
        self._phase_before = self._cur.slots[FORWARD]

    def _forward_end(self, moment: g.Moment) -> None:
        if self._close(FORWARD, UNGRADED) != FORWARD:
            return
        if moment[2] is not None:
            self._cur.forward_blocked = known_sum(self._cur.forward_blocked, self._blocked(FORWARD, moment[2]))
        self._set_stage(MID)

    def _backward_begin(self, moment: g.Moment) -> None:
        if self._possible is not None and not (self._possible.by_mode and self.optimizers):
            self._decide(evaluation=False)
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
        for module in self._reducing:
            cur.synced[module] = cur.synced.get(module, 0) + 1
        if moment[2] is not None:
            cur.backward_blocked = known_sum(cur.backward_blocked, self._blocked(BACKWARD, moment[2]))
        used = self._unused.end_backward(cur, cur.slots[BACKWARD] - self._phase_before)
        self._last_samples = self._last_samples if used is None else used
        if not self._ahead and self._last_samples:
            cur.forward_samples += self._last_samples
        self._last_samples, self._used_in_part = None, False
        self._reducing.clear()
        self._set_stage(OTHER)
        self._without_step += 1
        by_hand = self._without_step > _PATIENCE and not (self._stepped or self._unseen)
        if not self.optimizers or by_hand:
            self._step_by_backward()
        elif (not self._stepped or self._without_step > g.FEW_BACKWARDS) and self._all_booked:
            self._at_backward = (self._mark or 0, list(self._cur.slots))

    # -- where steps end ----------------------------------------------------------------------------

    def _made_optimizer(self, _: g.Moment) -> None:
        self.optimizers += 1

    def _step_by_backward(self) -> None:
        self._settle(evaluation=False)
        self._hold().flags |= FLAG_BY_BACKWARD
        self._emit(self._mark or 0)

    def _updated(self, moment: g.Moment) -> None:
        """End a step with the last backward: parameters have changed without a visible optimizer step."""
        if self._steppers or not self._without_step:
            return
        self._unseen = True
        after, end_ns = Part(), self._mark or 0
        if self._at_backward is not None:
            end_ns, slots = self._at_backward
            after.slots = [now - then for now, then in zip(self._cur.slots, slots, strict=True)]
            after.slots[GAP], after.slots[OTHER] = after.slots[GAP] + after.slots[OTHER], 0
            self._cur.slots = slots
        else:
            self._settle(evaluation=False)
        self._hold().flags |= FLAG_BY_BACKWARD
        self._emit(end_ns)
        self._unused.clear()
        self._cur, self._at_backward, self._without_step = after, None, 0

    def _optimizer_begin(self, moment: g.Moment) -> None:
        self._decide(evaluation=False)
        self.optimizers = max(self.optimizers, 1)
        self._leave_optimizer(moment[2])  # an exception may have interrupted its previous step
        self._steppers.append((moment[2], len(self._open)))
        # A closure contains forward and backward: until they have run, idle time belongs to them.
        self._open.append(OPTIMIZER if self._stage == OTHER else STEPPING)

    def _leave_optimizer(self, optimizer: int) -> None:
        """End the phase of an optimizer's step, with all phases inside it; no effect if the phase is not open."""
        for place, (stepper, depth) in enumerate(self._steppers):
            if stepper == optimizer:
                del self._steppers[place:], self._open[depth:]
                return

    def _optimizer_end(self, moment: g.Moment) -> None:
        optimizer: int = moment[2]
        self._leave_optimizer(optimizer)
        self._book_stepping(OPTIMIZER)
        self._settle(evaluation=self._pending.evaluating)
        self._stepped |= self._without_step > 0
        self._without_step, self._at_backward = 0, None
        self._stage = GAP
        if optimizer in self._seen:
            self._closer = self.last_optimizer
            self._emit(self._held_end)
        self._hold()
        self._held_end = self._mark or 0
        self.last_optimizer = optimizer
        self._seen.add(optimizer)
        if optimizer == self._closer:
            self._emit(self._held_end)

    def _hold(self) -> Part:
        """Append the counts since the last optimizer step to the open step, and return the open step."""
        self._decide(evaluation=False)
        if self._stepping:
            self._book_stepping(OPTIMIZER)
        self._unused.clear()
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
