"""What do the patches share? One slotted object, so that the hot path is an attribute load and an append.

A *moment* is a tuple ``(time_ns, code, *details)`` noted by the training thread. The codes pair up:
``X`` begins a phase and ``X + 1`` ends it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

Moment = tuple[Any, ...]

ITER = 2
FETCH = 4  # details of the end: loader number (-1: exhausted), samples or None, CPU ns of the thread or None
FORWARD = 6  # details of the begin: Forward; of the end: CPU ns of the thread or None
BACKWARD = 8  # details of the begin: loss or None, stack or None; of the end: CPU ns of the thread or None
OPTIMIZER = 10  # details of the begin and the end: optimizer's id
COMMUNICATION = 12
SAVE = 14
TRANSFER = 16
TIDY = 18  # clipping, zeroing of gradients: booked as optimizer
MADE_OPTIMIZER = 20  # an optimizer object was built (a point, not a phase)


class Gate:
    """The switchboard between patches and scribe. All times are CLOCK_MONOTONIC ns."""

    __slots__ = (
        "distributed",
        "frames_wanted",
        "loader",
        "moments",
        "nested",
        "on",
        "owner",
        "put",
        "rank",
        "scribe_started",
        "stamp",
        "start_scribe",
        "window",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Return to the state of a fresh process (also after a fork)."""
        self.moments: deque[Moment] = deque()
        self.put: Callable[[Moment], None] = self.moments.append
        self.nested = False  # inside an outermost forward, a backward or a fetch: inner modules are not marked
        self.owner = threading.main_thread().ident or 0
        self.on = True
        self.loader = -1  # number of the loader that fetches now
        self.distributed = False
        self.rank: tuple[int, int] | None = None  # rank and world size, once a process group is made
        self.frames_wanted = 6  # so many more forwards and backwards shall bring their stack
        self.scribe_started = False
        self.window: Callable[[], None] | None = None  # called at each step end while a profiler window is due
        self.start_scribe: Callable[[], None] = lambda: None
        self.stamp: Callable[[], Any] = perf_counter_ns


gate = Gate()
