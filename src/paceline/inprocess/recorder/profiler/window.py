"""The profiler window: torch's profiler for a few steps, to measure the operators of a step.

The window runs on the training thread and uses the legacy profiler state, which starts in 0.1 ms, prints nothing and
writes no file. With a device, the window is one step, with shapes (for FLOPs) and a pair of events around every
operator; the events are read after the device has passed all of them. If the program starts its own profiler, the
window ends first. A window that is open too long or uses too much memory is closed and discarded (`window_limits`);
another window replaces it.
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

_WANTED_S = 0.25  # target duration of the profiled steps; at most _MOST_STEPS of them
_MOST_STEPS = 4
_MOST_TRIES = 3
_NEVER_ABOVE_S = 20.0  # longer steps are not profiled, to avoid slowing them


class OperatorWindow:
    """The profiler window of this process. The training thread starts and ends it, the recorder reads it."""

    kind = "window"  # kind of the note with the result
    ends_at_fork = True  # a child would inherit the open profiler and never close it

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self._left = 0
        self.begun_ns: int | None = None
        self.ended_ns: int | None = None
        self.result: Any = None
        self.taken = False
        self.steps = 0
        self.events: Any = None  # the device's events, if there is a device
        self._parts = 1
        self._last: Any = None  # an event after all others
        self._failed: str | None = None
        self._spans: list[tuple[int, int]] = []  # times at which earlier windows were open
        self._expected_s = 0.0
        self._limits: Limits | None = None
        self._over: str | None = None  # the exceeded limit
        self._tries = 0
        self._thread = 0  # id of the thread that opened the window
        self._noted: Callable[[Moment], None] = gate.put  # the function that records events while the window is closed
        self._discarding = MainThreadCall(self._discard)

    def offer(self, step_s: float, parts: int = 1) -> None:
        """Request a window for the next steps. A step takes about `step_s` seconds and has `parts` optimizer steps."""
        if self.taken or step_s > _NEVER_ABOVE_S:
            return
        self.taken = True
        self._parts = parts
        if self.events is not None and self.events.index is None:
            self.events = None  # the program does not use the device
        steps = max(1, min(_MOST_STEPS, math.ceil(_WANTED_S / max(step_s, 1e-6))))
        self._expected_s = step_s * (steps if self.events is None else 1)
        self._left = steps if self.events is None else parts
        gate.window = self.at_step_end

    def again(self) -> bool:
        """Allow another window. Return False if a window is requested, is open, or was not read yet."""
        if not self.taken or self._left > 0 or self.result is not None:
            return False
        self._tries = 0
        self._forget()
        return True

    def _forget(self) -> None:
        """Reset the state, but keep the times at which windows were open."""
        if self.begun_ns is not None and self.ended_ns is not None:
            self._spans = [*self._spans[-8:], (self.begun_ns, self.ended_ns)]
        self.taken = False
        self.begun_ns = self.ended_ns = self._last = self._over = None
        self.steps = 0

    def at_start(self) -> None:
        """Do nothing: the first steps are not representative."""

    def at_step_end(self, optimizer: int = 0) -> None:
        """Start the window at the first step end; count the later steps, and end the window after the last one."""
        try:
            if self.begun_ns is None:
                self._begin()
            elif get_ident() == self._thread:  # another training thread must not end the profiler
                self.steps += 1
                self._left -= 1
                if self._left <= 0:
                    self.end()
        except Exception as error:
            if self.events is None:
                hooks.fault(error, "profiler window")
            else:  # device windows are optional: recording continues without one
                gate.window = None
                self._failed = f"{type(error).__name__}: {error}"

    def _begin(self) -> None:
        torch = self._torch
        if program_profiles(torch):
            gate.window, self._left = None, 0  # the program uses the profiler itself
            return
        if self.events is not None and not self.events.ready():
            return  # a graph is being captured: try again at the next step
        self._limits, self._thread = Limits(self._expected_s), get_ident()
        self.begun_ns = perf_counter_ns()
        if self.events is None:
            _enable("CPU", shapes=False)
        else:
            _enable("CUDA" if torch.version.cuda else "CPU", shapes=True)
        self._noted, gate.put = gate.put, self._put

    # -- limits ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Request the end of the window if a limit is exceeded. The recorder calls this method in every iteration."""
        if self._limits is None or self.begun_ns is None or self.ended_ns is not None:
            return
        self._over = self._over or self._limits.exceeded()
        if self._over is not None:
            self._discarding.ask()

    def _put(self, moment: Moment) -> None:
        """Record an event while the window is open. If a limit is exceeded, close the window first."""
        if self._over is not None:
            self._discard()
        self._noted(moment)

    def _discard(self) -> None:
        """Close a window that exceeded a limit, if this thread opened it and is outside any forward or backward."""
        if self._over is None or gate.nested or get_ident() != self._thread:
            return
        try:
            self.end()
        except Exception as error:
            gate.window, self._failed = None, f"{type(error).__name__}: {error}"

    # -- the end --------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the window if it is open in this process."""
        if self.begun_ns is None or self.ended_ns is not None or os.getpid() != self._pid:
            return
        gate.window = None
        if gate.put == self._put:
            gate.put = self._noted
        from torch._C._autograd import _disable_profiler_legacy

        closed_ns = self.ended_ns = perf_counter_ns()  # from here on no other call ends the window
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
        """Return the result of the window once; None until the window has ended, also on the device."""
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
        """Allow another window after one that was closed because of a limit, until the tries are used up."""
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
        """Return whether the profiler was on in a time interval."""
        if any(end_ns > begun and begin_ns < ended for begun, ended in self._spans):
            return True
        if self.begun_ns is None:
            return False
        return end_ns > self.begun_ns and (self.ended_ns is None or begin_ns < self.ended_ns)


def _enable(state: str, *, shapes: bool) -> None:
    """Start the profiler. State ``CUDA`` adds events around every operator; torch without CUDA would warn."""
    from torch._C._autograd import _enable_profiler_legacy
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    wanted = getattr(ProfilerState, state)
    _enable_profiler_legacy(ProfilerConfig(wanted, shapes, False, False, shapes, False, _ExperimentalConfig(), ""))


class _ProfilerState:
    """Whether torch's profiler is in use. Starting a profiler during the warm-up steps of another one crashes torch."""

    started_by_paceline = False  # Paceline, not the program, is starting a profiler
    prepared_by_program = False  # the program's profiler is in its warm-up steps


profiler_state = _ProfilerState()


def program_profiles(torch: Any) -> bool:
    """Return whether the program has prepared or started a profiler."""
    return profiler_state.prepared_by_program or bool(torch.autograd._profiler_enabled())


def patch(torch: Any, give_way: Callable[[], None]) -> None:
    """Call `give_way` when the program starts its own profiler."""
    owner = torch.autograd.profiler
    for name in ("_prepare_profiler", "_enable_profiler"):
        original = getattr(owner, name, None)
        if original is None:
            continue

        def giving_way(*args: Any, _original: Any = original, _name: str = name, **kwargs: Any) -> Any:
            give_way()
            if not profiler_state.started_by_paceline:
                profiler_state.prepared_by_program = _name == "_prepare_profiler"
            return _original(*args, **kwargs)

        hooks.replace(owner, name, giving_way)
