"""MEM002: memory grows with each step."""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.statistics import drift, slope
from paceline.record.run import Rows

_LEAST_BYTES = 48 * 2**20
_LEAST_READINGS = 4
_LEAST_NS = 1.5e9  # of readings: allocators fill up first

PAGE = """
## What it means

The process uses more memory after each step and will run out of memory. The usual cause is that the program keeps
references to old tensors: in a list of losses with their autograd graphs, in a cache without a size limit, or in a hook
that stores activations.

## How it is detected

Paceline reports `memory-growing` if, after the warm-up, the memory of the process or of the GPU grows by at least 48
MiB and by at least a tenth of its first value. The readings must cover at least 1.5 seconds. To test whether the memory
rises steadily, Paceline divides the run into eight parts. Memory must rise from nearly every part of the run to the
next part (Kendall's tau of at least 0.7).

## What helps

- `memory.detach`: store numbers instead of tensors with autograd graphs (`loss.item()` or `loss.detach()`).
- `run.bound_state`: limit the size of caches and histories.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding MEM002, or None if it does not apply."""
    found = [
        g for rank in facts.ranks for name in ("rss_bytes", "device_allocated_bytes") if (g := _growth(rank, name))
    ]
    if not found:
        return None
    rank, name, grown, begin, per_step, count = max(found, key=lambda g: g[2])
    kind = "host" if name == "rss_bytes" else "device"
    limit = facts.host.memory_limit_bytes if kind == "host" else rank.record.meta.get("device_total_bytes")
    evidence = [
        Evidence(
            text=f"{kind} memory grew by {units.size(grown)} from {units.size(begin)} ({count} readings)",
            value=grown,
            unit="bytes",
        ),
        Evidence(text=f"memory grows by {units.size(per_step)} per step", value=per_step, unit="bytes per step"),
    ]
    if limit and per_step > 0:
        left = (float(limit) - begin - grown) / per_step
        evidence.append(
            Evidence(
                text=f"if memory use grows at this rate, memory is full after {left:,.0f} more steps",
                value=left,
                unit="steps",
            )
        )
    return Finding(
        code="MEM002",
        name="memory-growing",
        severity="critical",
        confidence="high" if count >= 8 else "medium",
        time_share=None,
        gain=None,
        ranks=[rank.record.rank],
        evidence=evidence,
        remedies=[
            Remedy(
                id="memory.detach",
                safety="exact",
                change="store numbers instead of tensors with autograd graphs: use loss.item() or loss.detach()",
            ),
            Remedy(id="run.bound_state", safety="exact", change="limit the size of caches and histories"),
        ],
        summary=f"{kind} memory grows by {units.size(per_step)} per step",
    )


def _growth(rank: RankFacts, name: str) -> tuple[RankFacts, str, float, float, float, int] | None:
    """Return (rank, reading, bytes grown, first bytes, bytes per step, readings); None if it does not grow steadily."""
    ticks = _while_training(rank)
    values = ticks[name].astype(np.float64)
    if len(values) < _LEAST_READINGS or np.isnan(values).any():
        return None
    if ticks["time_ns"][-1] - ticks["time_ns"][0] < _LEAST_NS:
        return None
    grown, begin = float(values[-1] - values[0]), float(values[0])
    rising = drift(values)[1] if len(values) >= 16 else float(np.mean(np.sign(np.diff(values))))
    if grown < max(_LEAST_BYTES, 0.1 * begin) or rising < 0.7:
        return None
    return rank, name, grown, begin, slope(ticks["step"].astype(np.float64), values), len(values)


def _while_training(rank: RankFacts) -> Rows:
    """Return the readings after warm-up and before the end of the program, which frees its memory."""
    ticks, over = rank.record.ticks, rank.record.noted("end")
    ticks = ticks[ticks["step"] >= rank.breakdown.warmup + 1]
    before = ticks[ticks["time_ns"] < over[-1].get("time_ns", np.inf)] if over else ticks
    return before if len(before) >= _LEAST_READINGS else ticks


RULE = Rule(code="MEM002", name="memory-growing", page=PAGE, check=check)
