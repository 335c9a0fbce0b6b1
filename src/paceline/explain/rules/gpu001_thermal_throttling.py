"""GPU001: the GPU lowers its clock because of heat."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.gpu import GpuUse, Throttle
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEAST_SHARE = 0.05
_LEAST_READINGS = 2

PAGE = """
## What it means

The GPU is too hot and lowers its clock rate until it has cooled down. Steps then take longer. In a run with several
GPUs, the other GPUs wait for the hot GPU.

## How it is detected

Paceline reports `thermal-throttling` if the driver names heat as the reason for a lower clock rate (`sw_thermal`,
`hw_thermal`) in at least two readings and in at least 5% of the readings under load.

The lost time is the product of three values: the share of readings with heat as the reason, how much lower the SM clock
rate is in readings with heat as the reason than in readings without a limit, and the share of computing in step time.
If there are fewer than three readings without a limit, Paceline compares with the highest clock rate of the GPU
instead. The expected gain is assumed: at most all of the lost time, because memory-bound operations hardly depend on
the SM clock rate. The meaning of the readings comes from NVML's documentation.

The page [devices](../reference/devices.md) lists the hardware on which the finding `thermal-throttling` was tested.

## What helps

- `gpu.cooling`: increase the air flow, clean the fans, or set the fans to start at a lower temperature.
- `gpu.power_limit`: set a slightly lower power limit, so that the clock rate is constant instead of rising and falling.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding GPU001, or None if it does not apply."""
    found = [(r, gpu, gpu.heat) for r, gpu in analysis.gpus if gpu.heat is not None and _shows(gpu.heat)]
    if not found:
        return None
    rank, gpu, heat = max(found, key=lambda each: each[2].share * each[2].deficit)
    compute = sum(rank.breakdown.shares[p] for p in ("forward", "backward", "optimizer"))
    lost = heat.share * heat.deficit * compute
    gain = at_most(lost)
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
            Remedy(id="gpu.cooling", safety="exact", change="improve the cooling of the GPU", gain=gain),
            Remedy(
                id="gpu.power_limit",
                safety="exact",
                change="run nvidia-smi -pl WATTS with a value slightly below the current power limit",
            ),
        ],
        summary=f"GPU {gpu.index} lowers its clock rate because of heat during {units.percent(heat.share)} of the time",
    )


def _shows(heat: Throttle) -> bool:
    return heat.share >= _LEAST_SHARE and heat.share * heat.readings >= _LEAST_READINGS


def _evidence(rank: RankAnalysis, gpu: GpuUse, heat: Throttle) -> list[Evidence]:
    found = [
        Evidence(
            text=f"heat lowers the clock rate of GPU {gpu.index} ({gpu.name}) on {rank.record.host} in "
            f"{units.percent(heat.share)} of {heat.readings} readings under load",
            value=heat.share,
            unit="share of readings",
        )
    ]
    if heat.clock_mhz and heat.free_clock_mhz:
        text = (
            f"with heat as the limit, the SM clock rate is {heat.clock_mhz:,.0f} MHz instead of "
            f"{heat.free_clock_mhz:,.0f} MHz"
        )
        found.append(Evidence(text=text, value=heat.clock_mhz, unit="MHz"))
    if gpu.temperature_c is not None:
        found.append(Evidence(text=f"the GPU reached {gpu.temperature_c:.0f} °C", value=gpu.temperature_c, unit="°C"))
    return found


RULE = Rule(code="GPU001", name="thermal-throttling", page=PAGE, check=check)
