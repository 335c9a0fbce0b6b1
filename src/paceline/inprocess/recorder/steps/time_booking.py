"""Assign the time of a step to phases. Time whose phase is not known yet is stored until a later event decides it."""

from __future__ import annotations

from paceline.inprocess.recorder.steps.parts import (
    GAP,
    OPTIMIZER,
    OTHER,
    Part,
)
from paceline.inprocess.recorder.steps.pending import LoaderUse, Pending
from paceline.inprocess.recorder.steps.possible_evaluation import PossibleEvaluation
from paceline.inprocess.recorder.steps.unused_forwards import UnusedForwards

# Open phases whose slot is not known yet.
FETCHING = -1
UNGRADED = -2  # a gradient-free forward
STEPPING = -3  # an optimizer, until it is known whether it runs a closure


class TimeBooking:
    """The open phases, and the counts since the last optimizer step."""

    def __init__(self) -> None:
        self._mark: int | None = None
        self._begun_ns = 0  # start of the open step
        self.first_ns: int | None = None  # time of the first event
        self._open: list[int] = []  # slots of the open phases
        self._cur = Part()  # since the last optimizer step
        self._stage = GAP  # slot of idle time: GAP, MID or OTHER
        self._steppers: list[tuple[int, int]] = []  # open optimizers and their positions in _open
        self._stepping = 0  # time in an optimizer that may run a closure
        self._without_step = 0
        self._at_backward: tuple[int, list[int]] | None = None  # end of the last backward, and the slots at that time
        self._reducing: set[int] = set()  # modules whose gradients the next backward reduces
        self._last_samples: float | None = None
        self._used_in_part = False
        self._in_training_mode: set[int] = set()  # modules that were trained in training mode
        self._possible: PossibleEvaluation | None = None
        self.loaders: dict[int, LoaderUse] = {}
        self._phase_before = 0  # time in the slot of the open forward or backward before it started
        self._fetching = 0  # time in the open fetch
        self._pending = Pending()
        self._unused = UnusedForwards()

    def _advance(self, now: int) -> None:
        if self._mark is None:
            self._mark = self._begun_ns = self.first_ns = now
        passed = now - self._mark
        if passed <= 0:  # events of two threads may be out of order
            return
        self._mark = now
        top = self._open[-1] if self._open else None
        if top is None:
            if not (self._pending.expecting and self._pending.idle(passed)):
                self._cur.slots[self._stage] += passed
        elif top >= 0:
            self._cur.slots[top] += passed
        elif top == FETCHING:
            self._fetching += passed
        elif top == UNGRADED:
            self._pending.ungraded += passed
        else:
            self._stepping += passed

    def _close(self, *kinds: int) -> int | None:
        """Close the innermost open phase of these kinds, with all phases inside it; return its kind, or None."""
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
        """Assign the pending time, as evaluation or as the start of training on a batch."""
        pending = self._pending
        if self._fetching:
            pending.wait += self._fetching
            self._fetching = 0
        if pending.expecting or pending.wait or pending.ungraded or pending.started:
            uses = self.loaders if self._possible is None else self._possible.uses
            pending.settle(self._cur, self._stage, uses, evaluation=evaluation)

    def _decide(self, *, evaluation: bool) -> None:
        """Assign the possible evaluation, with all counts since its first forward, to evaluation or to training."""
        possible, self._possible = self._possible, None
        if possible is None:
            return
        self._at_backward = None
        if not evaluation:
            self._cur = possible.as_training(self._cur, self.loaders)
            return
        self._cur = possible.as_evaluation(self._cur, self.loaders)
        self._stage = possible.stage
        self._last_samples, self._used_in_part, self._pending.last_was_evaluation = None, False, True
        self._reducing.clear()
        self._without_step = 0

    @property
    def _all_booked(self) -> bool:
        pending = self._pending
        return not (self._open or self._fetching or self._stepping or pending.expecting or pending.wait)

    def _end_pass(self) -> None:
        """End a pass over a loader, because the loader has no more batches or another pass starts."""
        if self._possible is not None and not self._possible.by_mode and not self._possible.over:
            self._possible.over = True
            self._close_batch()

    def _close_batch(self) -> None:
        if self._possible is not None:
            self._possible.close_batch(self._cur)
            self._cur, self._at_backward = Part(), None

    def _suspect(self, module: int, training: bool) -> None:
        """Before a forward with gradients is counted, check whether it ends an evaluation or may belong to one."""
        fetches = self._pending.fetches
        loader = fetches[-1].loader if fetches else None
        if self._possible is not None and self._possible.is_ended_by(module, training, loader):
            self._decide(evaluation=True)
        by_mode = not training and module in self._in_training_mode
        if self._possible is None and not self._steppers and (by_mode or loader is not None):
            self._possible = PossibleEvaluation(self._cur, self._stage, by_mode=by_mode)
            self._cur = Part()
        if self._possible is not None:
            self._possible.add_forward(module, loader)

    def _blocked(self, slot: int, cpu: int) -> int:
        """Return the off-CPU time in the phase that ends now, except in phases inside it (collectives)."""
        return max(0, self._cur.slots[slot] - self._phase_before - cpu)

    def _set_stage(self, stage: int) -> None:
        """Set the slot of idle time. In an optimizer's closure, time after a backward belongs to the optimizer."""
        self._stage = stage
        if self._steppers and self._steppers[-1][1] < len(self._open):
            self._open[self._steppers[-1][1]] = OPTIMIZER if stage == OTHER else stage

    def _book_stepping(self, slot: int) -> None:
        self._cur.slots[slot] += self._stepping
        self._stepping = 0
