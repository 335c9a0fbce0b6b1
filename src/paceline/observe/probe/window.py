"""Which operators does a step consist of? Torch's own profiler, once, for a few steps, on the training thread.

The legacy profiler state is used on a CPU: it starts in a tenth of a millisecond, prints nothing and leaves no file.
If the program starts a profiler of its own meanwhile, ours ends first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any

from paceline.observe.probe import guard
from paceline.observe.probe.gate import gate

_WANTED_S = 0.25  # of steps to profile, at most _MOST_STEPS of them
_MOST_STEPS = 4
_NEVER_ABOVE_S = 20.0  # a step so long is not slowed down for our sake
_MOST_EVENTS = 400_000


class OperatorWindow:
    """The profiler window of this process: begun and ended by the training thread, read by the scribe."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._left = 0
        self.begun_ns: int | None = None
        self.ended_ns: int | None = None
        self.result: Any = None
        self.taken = False
        self.steps = 0

    def offer(self, step_s: float) -> None:
        """Ask the training thread to profile the next steps, each of about `step_s` seconds."""
        if self.taken or step_s > _NEVER_ABOVE_S:
            return
        self.taken = True
        self._left = max(1, min(_MOST_STEPS, math.ceil(_WANTED_S / max(step_s, 1e-6))))
        gate.window = self.at_step_end

    def at_step_end(self) -> None:
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
            guard.fault(error, "profiler window")

    def _begin(self) -> None:
        torch = self._torch
        if torch.autograd._profiler_enabled():
            gate.window = None  # the program profiles itself
            return
        from torch._C._autograd import _enable_profiler_legacy
        from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

        config = ProfilerConfig(ProfilerState.CPU, False, False, False, False, False, _ExperimentalConfig(), "")
        self.begun_ns = perf_counter_ns()
        _enable_profiler_legacy(config)

    def end(self) -> None:
        """End the window, if it is open."""
        if self.begun_ns is None or self.ended_ns is not None:
            return
        gate.window = None
        from torch._C._autograd import _disable_profiler_legacy

        closed_ns = perf_counter_ns()
        events = _disable_profiler_legacy()
        self.result = (self.begun_ns, closed_ns, events)
        self.ended_ns = perf_counter_ns()

    def overlaps(self, begin_ns: int, end_ns: int) -> bool:
        """Say whether a stretch of time was slowed by the profiler."""
        if self.begun_ns is None:
            return False
        return end_ns > self.begun_ns and (self.ended_ns is None or begin_ns < self.ended_ns)


def summarise(events: Iterable[Iterable[Any]], most: int = 60) -> list[dict[str, Any]]:
    """Return operators by their own time: name, count, seconds without what they called.

    Args:
        events: Per thread, the profiler's events: ``push`` and ``pop`` of ranges, in order.
        most: How many operators to return.
    """
    own: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for thread in events:
        _add_thread(thread, own, counts)
    names = sorted(own, key=lambda name: -own[name])[:most]
    return [{"name": name, "count": counts[name], "self_s": own[name] / 1e6} for name in names]


def _add_thread(events: Iterable[Any], own: dict[str, float], counts: dict[str, int]) -> None:
    stack: list[tuple[str, Any, float]] = []  # name, push event, microseconds of children
    for number, event in enumerate(events):
        if number > _MOST_EVENTS:
            return
        kind = event.kind()
        if kind == "push":
            stack.append((event.name(), event, 0.0))
        elif kind == "pop" and stack:
            name, begun, children = stack.pop()
            spent = begun.cpu_elapsed_us(event)
            if name.startswith(("aten::", "c10d::", "mkldnn::", "gloo:")):
                own[name] += spent - children
                counts[name] += 1
                children = 0.0
                inner = spent
            else:
                inner = children  # a range that is no operator: only its operators count for its parent
            if stack:
                parent, at, before = stack[-1]
                stack[-1] = (parent, at, before + inner)


def patch(torch: Any, window: OperatorWindow) -> None:
    """Give way when the program starts a profiler of its own."""
    owner = torch.autograd.profiler
    for name in ("_prepare_profiler", "_enable_profiler"):
        original = getattr(owner, name, None)
        if original is None:
            continue

        def giving_way(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            try:
                window.end()
            except Exception as error:
                guard.fault(error, "profiler window")
            return _original(*args, **kwargs)

        guard.replace(owner, name, giving_way)
