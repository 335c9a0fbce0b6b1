"""Sum the operators of a profiler window by self time, on the host and, with device events, on the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

_MOST_EVENTS = 400_000
_OPERATORS = ("aten::", "c10d::", "mkldnn::", "gloo:")


class _SelfTimes:
    """Self times of one operator (without the operators that it called), in µs."""

    __slots__ = ("count", "device_us", "host_us")

    def __init__(self) -> None:
        self.count = 0
        self.host_us = 0.0
        self.device_us: float | None = None


def summarise(events: Iterable[Iterable[Any]], most: int = 60) -> list[dict[str, Any]]:
    """Return the operators with the largest self time: name, count, self time in seconds.

    ``device_self_s`` starts when the device has finished the work queued before the operator, and ends when it has
    finished the operator's own work. It includes idle time of the device in between.

    Args:
        events: For each thread, the profiler's events in order: ``push`` and ``pop`` of ranges.
        most: The largest number of operators to return.
    """
    own: dict[str, _SelfTimes] = defaultdict(_SelfTimes)
    for thread in events:
        _add_thread(thread, own)
    names = sorted(own, key=lambda name: -(own[name].device_us or own[name].host_us))[:most]
    return [_as_json(name, own[name]) for name in names]


def _as_json(name: str, own: _SelfTimes) -> dict[str, Any]:
    device_s = None if own.device_us is None else own.device_us / 1e6
    return {"name": name, "count": own.count, "self_s": own.host_us / 1e6, "device_self_s": device_s}


def _add_thread(events: Iterable[Any], own: dict[str, _SelfTimes]) -> None:
    stack: list[tuple[str, Any, float, float]] = []  # name, push event, µs of children on the host and the device
    for number, event in enumerate(events):
        if number > _MOST_EVENTS:
            return
        kind = event.kind()
        if kind == "push":
            stack.append((event.name(), event, 0.0, 0.0))
        elif kind == "pop" and stack:
            name, begun, host, device = stack.pop()
            if name.startswith(_OPERATORS):
                host, device = _add(own[name], begun, event, host, device)
            # for a range that is not an operator, only its operators count for the parent
            if stack:
                parent, at, host_before, device_before = stack[-1]
                stack[-1] = (parent, at, host_before + host, device_before + device)


def _add(own: _SelfTimes, begun: Any, ended: Any, host: float, device: float) -> tuple[float, float]:
    """Add one operator, given the times of its children. Return the operator's total times."""
    spent = begun.cpu_elapsed_us(ended)
    own.count += 1
    own.host_us += spent - host
    if not begun.has_cuda() or not ended.has_cuda():
        return spent, device
    passed = begun.cuda_elapsed_us(ended)
    own.device_us = (own.device_us or 0.0) + passed - device
    return spent, passed
