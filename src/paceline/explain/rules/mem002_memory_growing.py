"""MEM002: memory grows with each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.core import units
from paceline.core.statistics import Floats, Interval, slope_interval
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import Rows

_LEAST_BYTES = 48 * 2**20
_LEAST_READINGS = 6
_CERTAIN_READINGS = 16
_STEADY = 0.5  # least growth rate in each half of the run, relative to the overall rate
_NOTED_AFTER_S = 1.0  # most seconds from the end of the profiled steps to their note
_KINDS = {"unshared_bytes": "host", "device_allocated_bytes": "device"}
_LEAST_NS = 1.5e9  # least time span of the readings, because allocators fill up first

PAGE = """
## What it means

The process uses more memory after each step and will run out of memory. The usual cause is that the program keeps
references to old tensors: in a list of losses with their autograd graphs, in a cache without a size limit, or in a hook
that stores activations.

## How it is detected

Paceline fits a line to the memory over the steps after the warm-up, and computes the 95% confidence interval of its
slope from the scatter of the readings. Paceline reports `memory-growing` if two conditions hold. The lower end of the
interval must mean a growth of at least 48 MiB and of at least a tenth of the first value. Each half of the readings
must grow at least half as fast as all readings. Readings during a profiler window are left out, because the profiler
needs memory itself. At least six readings over 1.5 seconds are needed.

Host memory is the anonymous and shared memory of the process. Pages of files, such as a memory-mapped dataset, are not
counted, because the operating system drops them when memory is needed. Records of earlier versions hold only the
resident memory, which includes the pages of files, so Paceline does not use it.

A cache that fills up, such as a replay buffer, grows in the same way until it is full. The severity is therefore
"warning", and "critical" only if memory would be full before the run has made as many further steps as it has made.

## What helps

- `memory.detach`: store numbers instead of tensors with autograd graphs (`loss.item()` or `loss.detach()`).
- `run.bound_state`: limit the size of caches and histories.
"""


@dataclass(frozen=True, kw_only=True)
class _Growth:
    rank: RankAnalysis
    name: str
    begin: float  # bytes at the first reading
    bytes: float  # additional bytes at the last reading
    per_step: Interval


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding MEM002, or None if it does not apply."""
    found = [g for rank in analysis.ranks for name in _KINDS if (g := _growth(rank, name))]
    if not found:
        return None
    most = max(found, key=lambda g: g.bytes)
    kind = _KINDS[most.name]
    limit = analysis.host.memory_limit_bytes if kind == "host" else most.rank.record.meta.get("device_total_bytes")
    left = (float(limit) - most.begin - most.bytes) / most.per_step.value if limit else None
    full_soon = left is not None and left < most.rank.breakdown.steps
    return Finding(
        code="MEM002",
        name="memory-growing",
        severity="critical" if full_soon else "warning",
        confidence="high" if most.per_step.count >= _CERTAIN_READINGS else "medium",
        time_share=None,
        gain=None,
        ranks=[most.rank.record.rank],
        evidence=_evidence(most, kind, left),
        remedies=[
            Remedy(
                id="memory.detach",
                safety="exact",
                change="store numbers instead of tensors with autograd graphs: use loss.item() or loss.detach()",
            ),
            Remedy(id="run.bound_state", safety="exact", change="limit the size of caches and histories"),
        ],
        summary=f"{kind} memory grows by {units.size(most.per_step.value)} per step",
    )


def _evidence(growth: _Growth, kind: str, left: float | None) -> list[Evidence]:
    slope = growth.per_step
    readings = units.count(slope.count, "reading")
    grown = f"{kind} memory grew by {units.size(growth.bytes)} from {units.size(growth.begin)} ({readings})"
    rate = (
        f"memory grows by {units.size(slope.value)} per step "
        f"(95% CI {units.size(slope.low)} to {units.size(slope.high)})"
    )
    found = [
        Evidence(text=grown, value=growth.bytes, unit="bytes"),
        Evidence(text=rate, value=slope.value, unit="bytes per step"),
    ]
    if left is not None:
        text = f"if memory use grows at this rate, memory is full after {left:,.0f} more steps"
        found.append(Evidence(text=text, value=left, unit="steps"))
    return found


def _growth(rank: RankAnalysis, name: str) -> _Growth | None:
    """Return the growth of one kind of memory, or None if the growth is within the noise or has ended."""
    ticks = _while_training(rank)
    values, steps = ticks[name].astype(np.float64), ticks["step"].astype(np.float64)
    if len(values) < _LEAST_READINGS or np.isnan(values).any():
        return None
    if ticks["time_ns"][-1] - ticks["time_ns"][0] < _LEAST_NS:
        return None
    slope, half = slope_interval(steps, values), len(values) // 2
    if slope is None or min(_slope(steps[:half], values[:half]), _slope(steps[half:], values[half:])) < (
        _STEADY * slope.value
    ):
        return None
    taken = float(steps[-1] - steps[0])
    grown = slope.value * taken
    begin = max(1.0, float(values.mean()) - slope.value * float(steps.mean() - steps[0]))
    if slope.low * taken < max(_LEAST_BYTES, 0.1 * begin):
        return None
    return _Growth(rank=rank, name=name, begin=begin, bytes=grown, per_step=slope)


def _slope(steps: Floats, values: Floats) -> float:
    return float(np.polyfit(steps, values, 1)[0]) if np.ptp(steps) > 0 else 0.0


def _while_training(rank: RankAnalysis) -> Rows:
    """Return the readings after warm-up and before the end of the program, because the end frees memory."""
    ticks, over = rank.record.ticks, rank.record.noted("end")
    ticks = ticks[ticks["step"] >= rank.breakdown.warmup + 1]
    before = ticks[ticks["time_ns"] < over[-1].get("time_ns", np.inf)] if over else ticks
    return _without_profiler(rank, before if len(before) >= _LEAST_READINGS else ticks)


def _without_profiler(rank: RankAnalysis, ticks: Rows) -> Rows:
    """Return the longest series of readings without profiled steps, because profiling itself uses memory."""
    stretches, after = [], 0
    for note in rank.record.noted("window"):
        end_ns = int(note.get("time_ns") or 0)
        begin_ns = end_ns - round(1e9 * (float(note.get("wall_s") or 0.0) + _NOTED_AFTER_S))
        begin, end = (int(np.searchsorted(ticks["time_ns"], at)) for at in (begin_ns, end_ns))
        stretches.append((after, begin))
        after = end
    first, last = max([*stretches, (after, len(ticks))], key=lambda pair: (pair[1] - pair[0], pair[0]))
    return ticks[first:last]


RULE = Rule(code="MEM002", name="memory-growing", page=PAGE, check=check)
