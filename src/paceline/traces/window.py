"""Which part of a capture is looked at? Every figure says which.

``all``      every GPU event of the file.
``hta``      what HolisticTraceAnalysis 0.5 looks at: with two or more marked steps, what was launched before the last
             of them began; what has no launch is left out, and so is the last step. Classes go by its names.
``steps``    what was launched within marked steps, the last one too, and what has no launch but runs between the first
             launched event's start and the last one's end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.traces import WINDOWS
from paceline.traces.classes import hta_class_of
from paceline.traces.model import Capture, GpuEvents


def events_in(capture: Capture, window: str) -> GpuEvents:
    """Return the GPU events of a window.

    Raises:
        UsageError: There is no such window.
    """
    if window == "all":
        return capture.events
    if window == "hta":
        return _as_hta(capture)
    if window == "steps":
        return _in_steps(capture)
    raise UsageError(f"unknown window {window!r}; the known windows are {', '.join(WINDOWS)}")


def steps_in(capture: Capture, window: str) -> int:
    """Return how many marked steps a window holds; 0: none are marked."""
    marked = len({step.name for step in capture.steps})
    return marked - 1 if window == "hta" and marked >= 2 else marked


def _as_hta(capture: Capture) -> GpuEvents:
    events = capture.events
    if len({step.name for step in capture.steps}) >= 2:
        before = max(step.start_ns for step in capture.steps)
        events = events.where(_launched(capture, capture.launches.start_ns < before))
    classes = np.array([hta_class_of(name) for name in events.names], np.uint8)
    return replace(events, class_=classes[events.name] if len(events) else events.class_)


def _in_steps(capture: Capture) -> GpuEvents:
    if not capture.steps:
        return capture.events
    at = capture.launches.start_ns
    inside = np.zeros(len(at), bool)
    for step in capture.steps:
        inside |= (at >= step.start_ns) & (at < step.end_ns)
    events = capture.events
    chosen = _launched(capture, inside)
    if chosen.any():
        first, last = events.start_ns[chosen].min(), events.end_ns[chosen].max()
        unlaunched = ~_launched(capture, np.ones(len(at), bool))
        chosen |= unlaunched & (events.start_ns >= first) & (events.end_ns <= last)
    return events.where(chosen)


def _launched(capture: Capture, by: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which GPU events one of some launches caused."""
    known = capture.launches.correlation[by]
    return np.isin(capture.events.correlation, known[known >= 0])
