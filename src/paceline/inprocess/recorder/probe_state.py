"""The state that all patches share: one object with slots, so that the hot path is an attribute load and an append.

A *program event* (type `Moment`) is a tuple ``(time_ns, code, *details)`` that the training thread appends. Codes come
in pairs: ``X`` starts a phase and ``X + 1`` ends it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Moment = tuple[Any, ...]

ITER = 2
FETCH = 4  # details of the end: loader number (-1: exhausted), samples or None, CPU ns of the thread or None
FORWARD = 6  # details of the start: the fields of state_machine.Forward; of the end: CPU ns of the thread or None
BACKWARD = 8  # details of the start: loss or None, stack or None; of the end: CPU ns of the thread or None
OPTIMIZER = 10  # details of the start and the end: the optimizer's id
COMMUNICATION = 12
SAVE = 14
TRANSFER = 16
TIDY = 18  # gradient clipping and zeroing: counted as optimizer time
MADE_OPTIMIZER = 20  # an optimizer was created (a single event, not a phase)
UPDATED = 22  # parameters changed since the last backward without a visible optimizer step (not a phase)

FEW_BACKWARDS = 8  # backward passes without an optimizer step, after which parameters are checked for changes

_MOST_MOMENTS = 1 << 20  # limit while the recorder is blocked (a disk that hangs); then recording stops


def _drop(_: Moment) -> None:
    """Discard an event after recording has stopped."""


class Gate:
    """The state shared by patches and the recorder. All times are CLOCK_MONOTONIC ns."""

    __slots__ = (
        "backwards",
        "copies",
        "distributed",
        "fed",
        "fetches",
        "frames_wanted",
        "thread_switches",
        "loader",
        "moments",
        "nested",
        "on",
        "optimizer_steps",
        "owner",
        "put",
        "rank",
        "scribe_started",
        "start_scribe",
        "take_loss",
        "unseen_updates",
        "unstepped",
        "window",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Restore the state of a new process; also used after a fork."""
        self.moments: deque[Moment] = deque(maxlen=_MOST_MOMENTS)
        self.put: Callable[[Moment], None] = self.moments.append
        self.fed = False  # a loader was used since the last backward: forwards need not check their input
        self.fetches = -1  # number of requested batches minus one
        self.nested = False  # inside an outermost forward, a backward or a fetch: inner modules are not recorded
        self.owner = threading.main_thread().ident or 0
        self.thread_switches = 0  # from one training thread to another
        self.on = True
        self.loader = -1  # number of the loader that fetches now
        self.distributed = False
        self.rank: tuple[int, int] | None = None  # rank and world size, once a process group exists
        self.frames_wanted = 6  # number of further forwards and backwards that record their stack
        self.scribe_started = False
        # called at each step end while a profiler window is due, with the optimizer's id (0: the program has none)
        self.window: Callable[[int], None] | None = None
        self.start_scribe: Callable[[], None] = lambda: None
        self.take_loss: Callable[[Any], Any] | None = None  # starts a delayed read of a loss on a GPU
        self.backwards = 0  # outermost backward passes so far
        self.optimizer_steps = 0  # visible optimizer steps so far
        self.unstepped = 0  # backward passes since the last visible optimizer step
        self.unseen_updates: Any = None  # records updates without a visible optimizer step (updates.UnseenUpdates)
        self.copies: Any = None  # counts overlapped copies to a GPU (side_copies.OverlappedCopies)

    def held(self) -> tuple[Any, ...]:
        """Return all objects to which the recorder refers."""
        return tuple(getattr(self, name) for name in self.__slots__)

    def silence(self) -> None:
        """Discard all later events: the program may call patched functions even after recording has stopped."""
        self.put = _drop
        self.nested = False
        self.scribe_started = True
        self.window = self.take_loss = self.copies = self.unseen_updates = None
        self.moments.clear()


gate = Gate()
