"""What do the patches share? One slotted object, so that the hot path is an attribute load and an append.

A *moment* is a tuple ``(time_ns, code, *details)`` noted by the training thread. The codes pair up:
``X`` begins a phase and ``X + 1`` ends it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Moment = tuple[Any, ...]

ITER = 2
FETCH = 4  # details of the end: loader number (-1: exhausted), samples or None, CPU ns of the thread or None
FORWARD = 6  # details of the begin: the fields of automaton.Forward; of the end: CPU ns of the thread or None
BACKWARD = 8  # details of the begin: loss or None, stack or None; of the end: CPU ns of the thread or None
OPTIMIZER = 10  # details of the begin and the end: optimizer's id
COMMUNICATION = 12
SAVE = 14
TRANSFER = 16
TIDY = 18  # clipping, zeroing of gradients: booked as optimizer
MADE_OPTIMIZER = 20  # an optimizer object was built (a point, not a phase)
UPDATED = 22  # parameters changed since the last backward, and no optimizer was seen to step (a point, not a phase)

FEW_BACKWARDS = 8  # without an optimizer step, after which it is looked whether parameters change all the same

_MOST_MOMENTS = 1 << 20  # kept while the recorder is held up (a disk that hangs); then watching stops


def _drop(_: Moment) -> None:
    """Take a moment when nobody wants it any more."""


class Gate:
    """The switchboard between patches and scribe. All times are CLOCK_MONOTONIC ns."""

    __slots__ = (
        "copies",
        "distributed",
        "fed",
        "fetches",
        "frames_wanted",
        "loader",
        "moments",
        "nested",
        "on",
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
        """Return to the state of a fresh process (also after a fork)."""
        self.moments: deque[Moment] = deque(maxlen=_MOST_MOMENTS)
        self.put: Callable[[Moment], None] = self.moments.append
        self.fed = False  # a loader was asked since the last backward: forwards need not look at their input
        self.fetches = -1  # how many batches were asked of loaders, from 0
        self.nested = False  # inside an outermost forward, a backward or a fetch: inner modules are not marked
        self.owner = threading.main_thread().ident or 0
        self.on = True
        self.loader = -1  # number of the loader that fetches now
        self.distributed = False
        self.rank: tuple[int, int] | None = None  # rank and world size, once a process group is made
        self.frames_wanted = 6  # so many more forwards and backwards shall bring their stack
        self.scribe_started = False
        # called at each step end while a profiler window is due, with the optimizer's id (0: the program has none)
        self.window: Callable[[int], None] | None = None
        self.start_scribe: Callable[[], None] = lambda: None
        self.take_loss: Callable[[Any], Any] | None = None  # reads a loss that is on a GPU, later
        self.unstepped = 0  # backward passes since an optimizer was seen to step
        self.unseen_updates: Any = None  # notes updates that no optimizer was seen to make (updates.UnseenUpdates)
        self.copies: Any = None  # knows of copies to a GPU that overlap with computing (overlap.OverlappedCopies)

    def held(self) -> tuple[Any, ...]:
        """Return all objects that the recorder refers to."""
        return tuple(getattr(self, name) for name in self.__slots__)

    def silence(self) -> None:
        """Watching has stopped: functions of ours that the program still holds note nothing more."""
        self.put = _drop
        self.nested = False
        self.scribe_started = True
        self.window = self.take_loss = self.copies = self.unseen_updates = None
        self.moments.clear()


gate = Gate()
