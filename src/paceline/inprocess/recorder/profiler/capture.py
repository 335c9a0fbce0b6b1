"""A capture of selected steps with torch's profiler, for ``paceline trace``.

``paceline run --profile 10:13`` captures steps 10 to 13 in every training process, counted from 0. Steps are marked in
the trace as with torch's profiler. The profiler starts one step earlier in its warm-up state, because the first step
after the start of CUPTI is slower than others; before step 0 there is no warm-up step. The training thread starts and
ends the capture, and the recorder's thread writes it. If the program uses the profiler itself, the capture ends.
"""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.profiler.window import profiler_state, program_profiles


class CaptureWindow:
    """The capture of selected steps in this process, with the same interface as `OperatorWindow`."""

    kind = "capture"  # kind of the note with the result
    taken = True  # steps need not be offered
    ends_at_fork = False  # a loader worker leaves the capture to its parent

    def __init__(self, torch: Any, folder: str, steps: tuple[int, int]) -> None:
        self._torch = torch
        self._folder = folder
        self._first, self._last = steps
        self._pid = os.getpid()
        self._done = 0  # completed steps
        self._which: int | None = None  # id of the optimizer whose steps are counted: the first one that stepped
        self._profiler: Any = None
        self._thread = 0  # that started the profiler
        self._finished: Any = None  # the profiler to write
        self._failed: str | None = None
        self.events: Any = None
        self.begun_ns: int | None = None
        self.ended_ns: int | None = None
        gate.window = self.at_step_end

    def offer(self, step_s: float, parts: int = 1) -> None:
        """Do nothing: the steps are already selected."""

    def check(self) -> None:
        """Do nothing: a capture has no limits, because the user selected the steps."""

    def again(self) -> bool:
        """Return False: there is only one capture."""
        return False

    def at_start(self) -> None:
        """Start the profiler if the capture begins with step 0 or 1. Called at the training thread's first event."""
        if self._first <= 1:
            self._guarded(self._begin)

    def at_step_end(self, optimizer: int = 0) -> None:
        """Count a step, and start or end the capture if this step requires it. Called by the training thread."""
        self._which = optimizer if self._which is None else self._which
        if optimizer != self._which:
            return  # another optimizer in the same step
        if self._profiler is not None and get_ident() != self._thread:
            return  # another training thread must not count or end the steps
        self._done += 1
        if self._profiler is not None:
            self._guarded(self.end if self._done > self._last else self._step)
        elif self._done == self._first - 1:
            self._guarded(self._begin)

    def _guarded(self, act: Any) -> None:
        """Call `act`. If it raises, store the reason and record no capture; other recording continues."""
        try:
            act()
        except Exception as error:
            gate.window, self._profiler = None, None
            self._failed = f"{type(error).__name__}: {error}"

    def _begin(self) -> None:
        torch = self._torch
        if program_profiles(torch):
            gate.window = None
            self._failed = "the program profiles itself"
            return
        kinds = {torch.profiler.ProfilerActivity.CPU}
        if torch.cuda.is_initialized():
            kinds.add(torch.profiler.ProfilerActivity.CUDA)
        warm_up, record, first = torch.profiler.ProfilerAction.WARMUP, torch.profiler.ProfilerAction.RECORD, self._first
        made = torch.profiler.profile(
            activities=kinds,
            schedule=lambda step: warm_up if step < first else record,
            record_shapes=True,
            acc_events=True,
        )
        made.step_num = max(0, first - 1)
        self.begun_ns, self._thread = perf_counter_ns(), get_ident()
        self._acting(made.start)
        self._profiler = made

    def _step(self) -> None:
        self._acting(self._profiler.step)

    def _acting(self, act: Callable[[], Any]) -> None:
        """Run an action on the capture's own profiler. Unlike the program's profiler, it must not end the capture."""
        profiler_state.started_by_paceline = True
        try:
            with _silent_kineto():
                act()
        finally:
            profiler_state.started_by_paceline = False

    def end(self) -> None:
        """End the capture if it is running."""
        if profiler_state.started_by_paceline or self._profiler is None or os.getpid() != self._pid:
            return
        gate.window = None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        if self._done >= self._first:  # otherwise the program ended during the warm-up: nothing to write
            self._finished = profiler
        self.ended_ns = perf_counter_ns()

    def take(self) -> dict[str, Any] | None:
        """Write the capture once; return its file and step count, or the reason of a failure; None if not ready."""
        failed, self._failed = self._failed, None
        if failed is not None:
            return {"failed": failed}
        finished, self._finished = self._finished, None
        if finished is None:
            return None
        try:
            return {"file": self._written(finished), "steps": min(self._done, self._last + 1) - self._first}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    def _written(self, profiler: Any) -> str:
        os.makedirs(self._folder, exist_ok=True)
        rank = gate.rank[0] if gate.rank is not None else int(os.environ.get("RANK", "0") or 0)
        path = os.path.join(self._folder, f"rank{rank}-{self._pid}.json")
        profiler.export_chrome_trace(path + ".part.json")
        os.replace(path + ".part.json", path)
        return path

    def overlaps(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether the profiler was on in a time interval."""
        if self.begun_ns is None:
            return False
        return end_ns > self.begun_ns and (self.ended_ns is None or begin_ns < self.ended_ns)


@contextmanager
def _silent_kineto() -> Iterator[None]:
    """Suppress Kineto's messages by an environment variable, only during the block: children must not inherit it."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "6"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def steps_of(text: str) -> tuple[int, int] | None:
    """Parse a text such as ``10:13``; return the first and the last step, or None if it is not valid."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()) or int(last) < int(first):
        return None
    return int(first), int(last)
