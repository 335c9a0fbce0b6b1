"""Which operators does a step consist of? Torch's own profiler, once, for a few steps, on the training thread.

The legacy profiler state is used: it starts in a tenth of a millisecond, prints nothing and leaves no file. Where there
is a device it takes one step, with shapes (for FLOPs) and a pair of events around every operator, which are read once
the device has passed them all. If the program starts a profiler of its own meanwhile, ours ends first. A window
that stays open for too long, or costs too much memory, is closed and thrown away (`window_limits`), and taken again.
"""

from __future__ import annotations

import math
import os
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder.probe_state import Moment, gate
from paceline.inprocess.recorder.profiler import flops, operators
from paceline.inprocess.recorder.profiler.window_limits import Limits, MainThreadCall

_WANTED_S = 0.25  # of steps to profile, at most _MOST_STEPS of them
_MOST_STEPS = 4
_MOST_TRIES = 3
_NEVER_ABOVE_S = 20.0  # a step so long is not slowed down for our sake


class OperatorWindow:
    """The profiler window of this process: begun and ended by the training thread, read by the scribe."""

    kind = "window"  # of the note that says what came of it
    ends_at_fork = True  # a child would inherit the open profiler, and never close it

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self._left = 0
        self.begun_ns: int | None = None
        self.ended_ns: int | None = None
        self.result: Any = None
        self.taken = False
        self.steps = 0
        self.events: Any = None  # of the device, where there is one
        self._parts = 1
        self._last: Any = None  # an event behind all others
        self._failed: str | None = None
        self._spans: list[tuple[int, int]] = []  # in which windows before this one were open
        self._expected_s = 0.0
        self._limits: Limits | None = None
        self._over: str | None = None  # which limit is exceeded
        self._tries = 0
        self._thread = 0  # that opened it
        self._noted: Callable[[Moment], None] = gate.put  # what notes moments while it is closed
        self._discarding = MainThreadCall(self._discard)

    def offer(self, step_s: float, parts: int = 1) -> None:
        """Ask the training thread to profile the next steps, each of about `step_s` seconds and some optimizers."""
        if self.taken or step_s > _NEVER_ABOVE_S:
            return
        self.taken = True
        self._parts = parts
        if self.events is not None and self.events.index is None:
            self.events = None  # there is a device, but it is not used
        steps = max(1, min(_MOST_STEPS, math.ceil(_WANTED_S / max(step_s, 1e-6))))
        self._expected_s = step_s * (steps if self.events is None else 1)
        self._left = steps if self.events is None else parts
        gate.window = self.at_step_end

    def again(self) -> bool:
        """Be ready for another window; say whether that is so: not while one is due, open or not yet read."""
        if not self.taken or self._left > 0 or self.result is not None:
            return False
        self._tries = 0
        self._forget()
        return True

    def _forget(self) -> None:
        """Be as before the first offer, but for the times at which windows were open."""
        if self.begun_ns is not None and self.ended_ns is not None:
            self._spans = [*self._spans[-8:], (self.begun_ns, self.ended_ns)]
        self.taken = False
        self.begun_ns = self.ended_ns = self._last = self._over = None
        self.steps = 0

    def at_start(self) -> None:
        """Do nothing: steps have to settle first."""

    def at_step_end(self, optimizer: int = 0) -> None:
        """Begin at the first step end, count the others, and end at the last. Runs on the training thread."""
        try:
            if self.begun_ns is None:
                self._begin()
            else:
                self.steps += 1
                self._left -= 1
                if self._left <= 0:
                    self.end()
        except Exception as error:
            if self.events is None:
                hooks.fault(error, "profiler window")
            else:  # on a device it is a luxury: watching goes on without it
                gate.window = None
                self._failed = f"{type(error).__name__}: {error}"

    def _begin(self) -> None:
        torch = self._torch
        if torch.autograd._profiler_enabled():
            gate.window, self._left = None, 0  # the program profiles itself
            return
        if self.events is not None and not self.events.ready():
            return  # a graph is being captured: the next step will do
        self._limits, self._thread = Limits(self._expected_s), get_ident()
        self.begun_ns = perf_counter_ns()
        if self.events is None:
            _enable("CPU", shapes=False)
        else:
            _enable("CUDA" if torch.version.cuda else "CPU", shapes=True)
        self._noted, gate.put = gate.put, self._put

    # -- limits ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Have the window closed if a limit is exceeded. Called by the recorder at every turn."""
        if self._limits is None or self.begun_ns is None or self.ended_ns is not None:
            return
        self._over = self._over or self._limits.exceeded()
        if self._over is not None:
            self._discarding.ask()

    def _put(self, moment: Moment) -> None:
        """Note a moment while the window is open; close the window first if it is over a limit."""
        if self._over is not None:
            self._discard()
        self._noted(moment)

    def _discard(self) -> None:
        """Close a window that is over a limit, if this thread can: not within a pass of the autograd engine."""
        if self._over is None or gate.nested or get_ident() != self._thread:
            return
        try:
            self.end()
        except Exception as error:
            gate.window, self._failed = None, f"{type(error).__name__}: {error}"

    # -- the end --------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the window, if it is open in this process."""
        if self.begun_ns is None or self.ended_ns is not None or os.getpid() != self._pid:
            return
        gate.window = None
        if gate.put == self._put:
            gate.put = self._noted
        from torch._C._autograd import _disable_profiler_legacy

        closed_ns = self.ended_ns = perf_counter_ns()  # from here on nobody else ends it
        events = _disable_profiler_legacy()
        if self._over is not None:
            self._failed, self._left = f"closed early, {self._over}", 0
            self.ended_ns = perf_counter_ns()
            return
        if self.events is not None and self.events.ready():
            self._last = self.events.record()
        self.result = (self.begun_ns, closed_ns, events)
        self.ended_ns = perf_counter_ns()

    def take(self) -> dict[str, Any] | None:
        """Return, once, what the window showed; None before it is over and the device has passed its end."""
        if self._failed is None and self.result is None:
            return None
        try:
            if self._failed is None and self._last is not None and not self.events.query(self._last):
                return None
            failed, self._failed = self._failed, None
            result, self.result = self.result, None
            if failed:
                self._try_again()
            return {"failed": failed} if failed else self._summary(*result)
        except Exception as error:
            self.result = None
            return {"failed": f"{type(error).__name__}: {error}"}

    def _try_again(self) -> None:
        """Let steps be offered again after a window that was closed early."""
        if self._over is not None and self._tries < _MOST_TRIES - 1:
            self._tries += 1
            self._forget()

    def _summary(self, begun: int, closed: int, events: Any) -> dict[str, Any]:
        return {
            "wall_s": (closed - begun) / 1e9,
            "steps": max(1, self.steps // self._parts),
            "operators": operators.summarise(events),
            "matrix_work": None if self.events is None else flops.count(events),
        }

    def overlaps(self, begin_ns: int, end_ns: int) -> bool:
        """Say whether a stretch of time was slowed by the profiler."""
        if any(end_ns > begun and begin_ns < ended for begun, ended in self._spans):
            return True
        if self.begun_ns is None:
            return False
        return end_ns > self.begun_ns and (self.ended_ns is None or begin_ns < self.ended_ns)


def _enable(state: str, *, shapes: bool) -> None:
    """Begin; ``CUDA`` puts events around every operator (a torch built without it would warn at each)."""
    from torch._C._autograd import _enable_profiler_legacy
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    wanted = getattr(ProfilerState, state)
    _enable_profiler_legacy(ProfilerConfig(wanted, shapes, False, False, shapes, False, _ExperimentalConfig(), ""))


def patch(torch: Any, give_way: Callable[[], None]) -> None:
    """Give way when the program starts a profiler of its own."""
    owner = torch.autograd.profiler
    for name in ("_prepare_profiler", "_enable_profiler"):
        original = getattr(owner, name, None)
        if original is None:
            continue

        def giving_way(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            give_way()
            return _original(*args, **kwargs)

        hooks.replace(owner, name, giving_way)
