"""COMP007: is the GPU given too little to do at a time, with memory to spare?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.gpu import GpuUse
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

_COMPUTE = 0.7
_HALF = 0.5
_LEAST_READINGS = 3

PAGE = """
## What it means

The step is computing, but the GPU is not at work: its kernels are too small to fill it, so it idles between
them or runs them on a part of its units. There is memory for a larger batch.

## How it is decided

Forward, backward and optimizer take at least 70 % of step time (most of it, so that nothing else is to blame),
at most half of the GPU's memory was ever allocated, and either it computes in less than half of the time or
draws less than half of its power limit under load, over at least three readings. Half, because then a batch
twice as large fits, and at best takes the time that the small one takes now: so twice as many samples a second
is the most to expect, and nothing the least. No GPU has been seen by the authors.

## What helps

`batch.larger`: a larger batch, with the learning rate adapted. `compute.compile`: `torch.compile` makes fewer
and larger kernels.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP007."""
    compute = sum(facts.shares[p] for p in ("forward", "backward", "optimizer"))
    found = [(r, gpu) for r, gpu in facts.gpus if _has_room(r) and _is_underfilled(gpu)]
    if compute < _COMPUTE or not found:
        return None
    rank, gpu = found[0]
    gain = Gain(low=1.0, high=2.0)
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
            Remedy(id="batch.larger", safety="semantic", change=_larger(rank), gain=gain),
            Remedy(id="compute.compile", safety="numeric", change="torch.compile(model)", gain=gain),
        ],
        summary=f"GPU {gpu.index} is not filled: {_how_little(gpu)}",
    )


def _has_room(rank: RankFacts) -> bool:
    return rank.memory is not None and rank.memory.peak_allocated < _HALF * rank.memory.total


def _is_underfilled(gpu: GpuUse) -> bool:
    if gpu.readings < _LEAST_READINGS:
        return False
    idle = gpu.utilization is not None and gpu.utilization < _HALF
    cool = gpu.loaded >= _LEAST_READINGS and gpu.power_share is not None and gpu.power_share < _HALF
    return idle or cool


def _how_little(gpu: GpuUse) -> str:
    if gpu.utilization is not None and gpu.utilization < _HALF:
        return f"it computes {units.percent(gpu.utilization)} of the time"
    return f"it draws {units.percent(gpu.power_share)} of its power limit under load"


def _larger(rank: RankFacts) -> str:
    size = rank.breakdown.batch_size
    return f"a batch of {2 * size:,.0f} instead of {size:,.0f}" if size else "a batch twice as large"


def _evidence(rank: RankFacts, gpu: GpuUse) -> list[Evidence]:
    found = []
    if gpu.utilization is not None:
        text = f"GPU {gpu.index} ({gpu.name}) computes {units.percent(gpu.utilization)} of the time"
        text += f" ({gpu.readings} readings)"
        found.append(Evidence(text=text, value=gpu.utilization, unit="share of time"))
    if gpu.power_w is not None and gpu.power_share is not None:
        text = f"it draws {gpu.power_w:.0f} W under load, {units.percent(gpu.power_share)} of its limit"
        text += f" ({gpu.loaded} readings)"
        found.append(Evidence(text=text, value=gpu.power_w, unit="W"))
    if rank.memory is not None:
        used = rank.memory.peak_allocated / rank.memory.total
        text = f"at most {units.percent(used)} of its {units.size(rank.memory.total)} were allocated"
        found.append(Evidence(text=text, value=used, unit="share of memory"))
    return found


RULE = Rule(code="COMP007", name="device-underfilled", page=PAGE, check=check)
