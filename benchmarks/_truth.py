"""What does the profiler say that the device spent the phases on? From a Kineto trace with ranges ``phase:NAME``.

The device comes to a moment of the host when it has done all that was launched before it:

    D(t) = max(t, end of every kernel, copy and fill that was launched before t)

and a phase takes it from D(begin) to D(end). That is what an event in the stream would measure, worked out from the
kernels themselves. Programs with one stream only.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCH = {"cuda_runtime", "cuda_driver"}
_PREFIX = "phase:"


def phases_of(path: Path) -> dict[str, Any]:
    """Return shares of the device's time by phase, between the ends of the first and the last optimizer step."""
    return shares(json.loads(path.read_text())["traceEvents"])


def shares(events: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [e for e in events if e.get("ph") == "X"]
    ranges = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"].removeprefix(_PREFIX))
        for e in whole
        if e.get("cat") == "user_annotation" and e["name"].startswith(_PREFIX)
    )
    launches, ends = _launched(whole)

    def device(time: float) -> float:
        place = bisect_right(launches, time)
        return max(time, ends[place - 1]) if place else time

    closing = [end for _, end, name in ranges if name == "optimizer"]
    if len(closing) < 2:
        return {"steps": 0, "shares": {}, "busy": None, "kernels": len(launches)}
    first, last = closing[0], closing[-1]
    spent: dict[str, float] = {}
    for begin, end, name in ranges:
        if begin >= first and end <= last:
            spent[name] = spent.get(name, 0.0) + device(end) - device(begin)
    total = device(last) - device(first)
    found = {name: value / total for name, value in spent.items()}
    return {"steps": len(closing) - 1, "step_s": total / (len(closing) - 1) / 1e6, "shares": found} | {
        "kernels": len(launches),
        "busy": _busy(whole, device(first), device(last)),
    }


def _launched(events: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return when work was launched, in order, and until when all that was launched by then keeps the device busy."""
    at = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in _LAUNCH and "correlation" in e.get("args", {})
    }
    work = sorted(
        (at[e["args"]["correlation"]], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") in _WORK and e.get("args", {}).get("correlation") in at
    )
    return [launch for launch, _ in work], list(accumulate((end for _, end in work), max))


def _busy(events: list[dict[str, Any]], begin: float, end: float) -> float:
    """Return the share of time in which some kernel, copy or fill ran."""
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in _WORK)
    covered, until = 0.0, begin
    for start, stop in spans:
        start, stop = max(start, until), min(stop, end)
        covered += max(0.0, stop - start)
        until = max(until, stop)
    return covered / (end - begin)


def compared(truth: dict[str, Any], rows: list[dict[str, float]]) -> dict[str, Any]:
    """Set the device-timed rows' shares beside the profiler's; errors are differences of shares of a step."""
    total = sum(row["wall_s"] for row in rows) or 1.0
    names = {"data_wait", "transfer", "forward", "mid", "backward", "optimizer"}
    ours = {name: sum(row[f"{name}_s"] for row in rows) / total for name in names}
    told = dict.fromkeys(names, 0.0) | truth["shares"]
    told["optimizer"] += told.pop("tidy", 0.0)
    errors = {name: ours[name] - told[name] for name in sorted(names)}
    relative = [abs(errors[name]) / told[name] for name in names if told[name] >= 0.2]
    return {
        "profiler": told,
        "events": ours,
        "errors": errors,
        "largest_error": max(abs(e) for e in errors.values()),
        "largest_relative_error": max(relative, default=None),
        "rows": len(rows),
    }
