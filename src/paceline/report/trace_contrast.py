"""What does a person read of two captures beside each other? The parts of a step before and after, and the kernels."""

from __future__ import annotations

from paceline.core import units
from paceline.report.words import count
from paceline.traces.analyze.comparison import CaptureComparison, KernelChange
from paceline.traces.capture import CLASSES

MAX_CHANGES = 10
_NAME_WIDTH = 60
_WORTH = 0.001  # of the span


def contrast_lines(found: CaptureComparison) -> list[str]:
    """Say what changed, a line for each part of the time and for each kernel that changed most."""
    span = max(found.parts[0][1], found.parts[0][2])
    if not span:
        return ["comparison with the earlier capture: neither of the two captures has GPU events"]
    unit = "per step" if found.per_step else "in total (because steps are not marked in both captures)"
    lines = [f"comparison with the earlier capture, mean over ranks, {unit}"]
    for name, before, after in found.parts:
        if max(before, after) > 0:
            part = name.replace("exposed", "not overlapped")
            lines.append(f"{part}: {_ns(before)} -> {_ns(after)} ({units.signed_seconds((after - before) / 1e9)})")
    changed = [one for one in found.kernels if abs(one.change_ns) >= _WORTH * span][:MAX_CHANGES]
    return [*lines, *(_kernel(one) for one in changed)]


def _kernel(one: KernelChange) -> str:
    name = one.name if len(one.name) <= _NAME_WIDTH else one.name[: _NAME_WIDTH - 1] + "…"
    if not one.before.count or not one.after.count:
        there, side = ("new", one.after) if one.after.count else ("gone", one.before)
        times = f"{there}, {count(round(side.count), 'call')}"
    else:
        times = f"{one.before.count:.3g} -> {one.after.count:.3g} calls"
    what = f"{_ns(one.before.total_ns)} -> {_ns(one.after.total_ns)}"
    return f"{units.signed_seconds(one.change_ns / 1e9)} {CLASSES[one.class_]}: {what}, {times}: {name}"


def _ns(nanoseconds: float) -> str:
    return units.seconds(nanoseconds / 1e9) if nanoseconds else "none"
