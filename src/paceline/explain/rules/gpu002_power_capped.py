"""GPU002: the GPU lowers its clock because of a power limit."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.gpu import GpuUse, Throttle
from paceline.explain.analysis.mfu import computes_in_16_bits
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import Rank

_LEAST_SHARE = 0.05
_LEAST_DEFICIT = 0.05
_LEAST_READINGS = 2
_LOWERED = 0.98

PAGE = """
## What it means

The GPU draws as much power as its power limit allows, and lowers its clock rate to stay below the power limit. At the
default power limit, a lower clock rate is normal under full load. A lower clock rate is a problem if the power limit
was set below the default, or if the machine's power supply signals the GPU to use less power (a power brake).

## How it is detected

Paceline reports `power-capped` if the driver names power as the reason for a lower clock rate (`power_cap` or
`hw_power_brake`) in at least two readings and in at least 5% of the readings under load. In the readings with power as
the reason, the SM clock rate must be at least 5% lower than in readings without a limit. If there are fewer than three
readings without a limit, Paceline compares with the highest clock rate of the GPU instead.

The finding is a warning if the power limit is more than 2% below the default, or if there is a power brake. In all
other cases, the severity of the finding is "info". The expected gain is assumed: at most all of the lost clock rate,
because memory-bound operations hardly depend on the clock rate.

The page [devices](../reference/devices.md) lists the hardware on which the finding `power-capped` was tested.

## What helps

- `gpu.power_limit`: restore the default power limit (`nvidia-smi -pl`).
- `gpu.power_supply`: report the power brake to the operator of the machine.
- `precision.autocast`: use bf16, because a matrix product needs less energy in bf16 than in fp32.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding GPU002, or None if it does not apply."""
    found = [(r, gpu, cut) for r, gpu in analysis.gpus for cut in (gpu.brake, gpu.power) if cut and _shows(cut)]
    if not found:
        return None
    rank, gpu, cut = max(found, key=lambda each: (_is_fault(each[1], each[2]), each[2].share * each[2].deficit))
    compute = sum(rank.breakdown.shares[p] for p in ("forward", "backward", "optimizer"))
    lost, fault = cut.share * cut.deficit * compute, _is_fault(gpu, cut)
    gain = at_most(lost) if fault else None
    return Finding(
        code="GPU002",
        name="power-capped",
        severity="warning" if fault else "info",
        confidence="high" if cut.readings >= 10 else "medium",
        time_share=lost,
        gain=gain,
        ranks=sorted({r.record.rank for r, _, _ in found}),
        evidence=_evidence(gpu, cut),
        remedies=_remedies(rank.record, gpu, cut),
        summary=f"GPU {gpu.index} lowers its clock rate because of its power limit or a power brake during "
        f"{units.percent(cut.share)} of the time",
    )


def _shows(cut: Throttle) -> bool:
    enough = cut.share >= _LEAST_SHARE and cut.share * cut.readings >= _LEAST_READINGS
    return enough and cut.deficit >= _LEAST_DEFICIT


def _is_lowered(gpu: GpuUse) -> bool:
    limit, default = gpu.power_limit_w, gpu.power_limit_default_w
    return limit is not None and default is not None and limit < _LOWERED * default


def _is_fault(gpu: GpuUse, cut: Throttle) -> bool:
    return cut is gpu.brake or _is_lowered(gpu)


def _evidence(gpu: GpuUse, cut: Throttle) -> list[Evidence]:
    what = "a power brake" if cut is gpu.brake else "the power limit"
    found = [
        Evidence(
            text=f"{what} lowers the clock rate of GPU {gpu.index} ({gpu.name}) in {units.percent(cut.share)} of "
            f"{cut.readings} readings under load",
            value=cut.share,
            unit="share of readings",
        )
    ]
    if cut.clock_mhz and cut.free_clock_mhz:
        text = (
            f"while the power limit lowers the clock rate, the SM clock runs at {cut.clock_mhz:,.0f} MHz instead of "
            f"{cut.free_clock_mhz:,.0f} MHz"
        )
        found.append(Evidence(text=text, value=cut.clock_mhz, unit="MHz"))
    if gpu.power_w is not None and gpu.power_limit_w is not None:
        usual = f", {gpu.power_limit_default_w:.0f} W by default" if gpu.power_limit_default_w else ""
        text = f"the GPU draws {gpu.power_w:.0f} W under load, and its power limit is {gpu.power_limit_w:.0f} W{usual}"
        found.append(Evidence(text=text, value=gpu.power_w, unit="W"))
    return found


def _remedies(rank: Rank, gpu: GpuUse, cut: Throttle) -> list[Remedy]:
    if cut is gpu.brake:
        return [
            Remedy(
                id="gpu.power_supply", safety="exact", change="report the power brake to the operator of the machine"
            )
        ]
    if _is_lowered(gpu):
        change = f"nvidia-smi -i {gpu.index} -pl {gpu.power_limit_default_w:.0f}"
        return [Remedy(id="gpu.power_limit", safety="exact", change=change)]
    rounded = Remedy(id="precision.autocast", safety="numeric", change="use bf16 autocast")
    return [] if computes_in_16_bits(rank) else [rounded]


RULE = Rule(code="GPU002", name="power-capped", page=PAGE, check=check)
