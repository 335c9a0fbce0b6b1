"""GPU001: does the GPU cut its clocks for heat?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.gpu import GpuUse, Throttle
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEAST_SHARE = 0.05
_LEAST_READINGS = 2

PAGE = """
## What it means

The GPU is too hot and lowers its clocks until it is not. The same step takes longer, and on one GPU of many it
makes all the others wait.

## How it is decided

The driver names heat as a reason for lower clocks (`sw_thermal`, `hw_thermal`) in at least two readings and in
at least 5 % of those under load: one reading can be a blip, and 5 % is the share below which no finding is
made. What is lost is that share, times how much lower the SM clock is than in readings that nothing holds back
(than the card's highest clock, when there are fewer than three of them), times the compute share of a step. The
low end of the gain is a third of it, because work that waits for memory hardly follows the SM clock. No GPU has
been seen by the authors: the reading's meaning is NVML's.

## What helps

`gpu.cool`: more air, a cooler place in the rack, dust out of the fans, a fan curve that starts earlier.
`gpu.power_limit`: a lower power limit holds the clocks steady at a little less, instead of up and down.
"""


def check(facts: Facts) -> Finding | None:
    """Decide GPU001."""
    found = [(r, gpu, gpu.heat) for r, gpu in facts.gpus if gpu.heat is not None and _shows(gpu.heat)]
    if not found:
        return None
    rank, gpu, heat = max(found, key=lambda each: each[2].share * each[2].deficit)
    compute = sum(rank.breakdown.shares[p] for p in ("forward", "backward", "optimizer"))
    lost = heat.share * heat.deficit * compute
    gain = gain_of_removing(lost, 1 / 3, 1.0)
    return Finding(
        code="GPU001",
        name="thermal-throttling",
        severity="critical" if lost >= 0.1 else "warning",
        confidence="high" if heat.readings >= 10 else "medium",
        time_share=lost,
        gain=gain,
        ranks=[r.record.rank for r, _, _ in found],
        evidence=_evidence(rank, gpu, heat),
        remedies=[
            Remedy(id="gpu.cool", safety="exact", change="give the GPU more cooling", gain=gain),
            Remedy(
                id="gpu.power_limit", safety="exact", change="nvidia-smi -pl WATTS, a little below the limit of now"
            ),
        ],
        summary=f"GPU {gpu.index} cuts its clocks for heat {units.percent(heat.share)} of the time",
    )


def _shows(heat: Throttle) -> bool:
    return heat.share >= _LEAST_SHARE and heat.share * heat.readings >= _LEAST_READINGS


def _evidence(rank: RankFacts, gpu: GpuUse, heat: Throttle) -> list[Evidence]:
    found = [
        Evidence(
            text=f"heat holds the clocks of GPU {gpu.index} ({gpu.name}) on {rank.record.host} down in "
            f"{units.percent(heat.share)} of {heat.readings} readings under load",
            value=heat.share,
            unit="share of readings",
        )
    ]
    if heat.clock_mhz and heat.free_clock_mhz:
        text = f"the SM clock is then {heat.clock_mhz:,.0f} MHz instead of {heat.free_clock_mhz:,.0f} MHz"
        found.append(Evidence(text=text, value=heat.clock_mhz, unit="MHz"))
    if gpu.temperature_c is not None:
        found.append(Evidence(text=f"it reached {gpu.temperature_c:.0f} °C", value=gpu.temperature_c, unit="°C"))
    return found


RULE = Rule(code="GPU001", name="thermal-throttling", page=PAGE, check=check)
