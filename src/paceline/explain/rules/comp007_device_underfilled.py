"""COMP007: the GPU has too little work at a time, and memory is free."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gpu import GpuUse
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

_COMPUTE = 0.7
_HALF = 0.5
_LEAST_READINGS = 3

PAGE = """
## What it means

The kernels of a step are too small to use the whole GPU. The GPU is idle between kernels, or it uses only a part of its
compute units. GPU memory has room for a larger batch.

## How it is detected

Paceline reports `device-underfilled` if three conditions hold. The forward pass, the backward pass and the optimizer
together take at least 70% of step time. The program never allocates more than half of the GPU's memory. Over at least
three readings, the GPU computes during less than half of the time, or it draws less than half of its power limit under
load.

If half of the memory is free, a batch of twice the size fits. At best, a step with twice the batch size takes as long
as a step with the current batch size, so the expected speed-up is between 1x and 2x.

The page [devices](../reference/devices.md) lists the hardware on which the finding `device-underfilled` was tested.

## What helps

- `batch.size`: use a larger batch, and adapt the learning rate to it.
- `compute.compile`: `torch.compile` fuses small kernels into fewer, larger kernels.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP007, or None if it does not apply."""
    compute = sum(analysis.shares[p] for p in ("forward", "backward", "optimizer"))
    found = [(r, gpu) for r, gpu in analysis.gpus if _has_free_memory(r) and _is_underfilled(gpu)]
    if compute < _COMPUTE or not found:
        return None
    rank, gpu = found[0]
    gain = Gain(low=1.0, high=2.0, basis="assumed")
    return Finding(
        code="COMP007",
        name="device-underfilled",
        severity="warning",
        confidence="low",
        time_share=compute,
        gain=gain,
        ranks=[r.record.rank for r, _ in found],
        evidence=_evidence(rank, gpu),
        remedies=[
            Remedy(id="batch.size", safety="semantic", change=_larger(rank), gain=gain),
            Remedy(id="compute.compile", safety="numeric", change="torch.compile(model)", gain=gain),
        ],
        summary=f"the kernels of a step are too small for GPU {gpu.index}: {_how_little(gpu)}",
    )


def _has_free_memory(rank: RankAnalysis) -> bool:
    return rank.memory is not None and rank.memory.peak_allocated < _HALF * rank.memory.total


def _is_underfilled(gpu: GpuUse) -> bool:
    if gpu.readings < _LEAST_READINGS:
        return False
    idle = gpu.utilization is not None and gpu.utilization < _HALF
    cool = gpu.loaded >= _LEAST_READINGS and gpu.power_share is not None and gpu.power_share < _HALF
    return idle or cool


def _how_little(gpu: GpuUse) -> str:
    if gpu.utilization is not None and gpu.utilization < _HALF:
        return f"the GPU computes during {units.percent(gpu.utilization)} of the time"
    return f"the GPU draws {units.percent(gpu.power_share)} of its power limit under load"


def _larger(rank: RankAnalysis) -> str:
    size = rank.breakdown.batch_size
    return (
        f"use a batch size of {2 * size:,.0f} instead of {size:,.0f}" if size else "use a batch that is twice as large"
    )


def _evidence(rank: RankAnalysis, gpu: GpuUse) -> list[Evidence]:
    found = []
    if gpu.utilization is not None:
        text = f"GPU {gpu.index} ({gpu.name}) computes during {units.percent(gpu.utilization)} of the time"
        text += f" ({units.count(gpu.readings, 'reading')})"
        found.append(Evidence(text=text, value=gpu.utilization, unit="share of time"))
    if gpu.power_w is not None and gpu.power_share is not None:
        text = f"the GPU draws {gpu.power_w:.0f} W under load, {units.percent(gpu.power_share)} of its power limit"
        text += f" ({units.count(gpu.loaded, 'reading')})"
        found.append(Evidence(text=text, value=gpu.power_w, unit="W"))
    if rank.memory is not None:
        used = rank.memory.peak_allocated / rank.memory.total
        text = f"at most {units.percent(used)} of its {units.size(rank.memory.total)} were allocated"
        found.append(Evidence(text=text, value=used, unit="share of memory"))
    return found


RULE = Rule(code="COMP007", name="device-underfilled", page=PAGE, check=check)
