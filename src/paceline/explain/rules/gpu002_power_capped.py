"""GPU002: does the GPU cut its clocks for power?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.gpu import GpuUse, Throttle
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEAST_SHARE = 0.05
_LEAST_DEFICIT = 0.05
_LEAST_READINGS = 2
_LOWERED = 0.98

PAGE = """
## What it means

The GPU draws as much power as it may and lowers its clocks to stay there. At the limit it was sold with, that
is how a card under full load works, and no fault. It is one when somebody lowered the limit, or when the
machine's power supply tells the card to hold back (a power brake).

## How it is decided

The driver names power as a reason for lower clocks (`power_cap`, or `hw_power_brake`) in at least two readings
and in at least 5 % of those under load, and the SM clock is then at least 5 % lower than in readings that
nothing holds back (than the card's highest clock, when there are fewer than three): less than 5 % is below what
any finding is made for. It is a warning when the enforced limit is more than 2 % below the card's default one
(readings are rounded), or with a power brake; else it is only told. The low end of the gain is a third of what
the clock loses, because work that waits for memory hardly follows it. No GPU has been seen by the authors.

## What helps

`gpu.power_limit`: the card's default limit again (`nvidia-smi -pl`). `gpu.power_supply`: a power brake is for
whoever runs the machine: a supply that failed, or too many cards on one. `precision.bf16`: fewer joules for the
same product.
"""


def check(facts: Facts) -> Finding | None:
    """Decide GPU002."""
    found = [(r, gpu, cut) for r, gpu in facts.gpus for cut in (gpu.brake, gpu.power) if cut and _shows(cut)]
    if not found:
        return None
    rank, gpu, cut = max(found, key=lambda each: (_is_fault(each[1], each[2]), each[2].share * each[2].deficit))
    compute = sum(rank.breakdown.shares[p] for p in ("forward", "backward", "optimizer"))
    lost, fault = cut.share * cut.deficit * compute, _is_fault(gpu, cut)
    gain = gain_of_removing(lost, 1 / 3, 1.0) if fault else None
    return Finding(
        code="GPU002",
        name="power-capped",
        severity="warning" if fault else "info",
        confidence="high" if cut.readings >= 10 else "medium",
        time_share=lost,
        gain=gain,
        ranks=sorted({r.record.rank for r, _, _ in found}),
        evidence=_evidence(gpu, cut),
        remedies=_remedies(gpu, cut),
        summary=f"GPU {gpu.index} cuts its clocks for power {units.percent(cut.share)} of the time",
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
            text=f"{what} holds the clocks of GPU {gpu.index} ({gpu.name}) down in {units.percent(cut.share)} of "
            f"{cut.readings} readings under load",
            value=cut.share,
            unit="share of readings",
        )
    ]
    if cut.clock_mhz and cut.free_clock_mhz:
        text = f"the SM clock is then {cut.clock_mhz:,.0f} MHz instead of {cut.free_clock_mhz:,.0f} MHz"
        found.append(Evidence(text=text, value=cut.clock_mhz, unit="MHz"))
    if gpu.power_w is not None and gpu.power_limit_w is not None:
        usual = f", {gpu.power_limit_default_w:.0f} W by default" if gpu.power_limit_default_w else ""
        text = f"it draws {gpu.power_w:.0f} W under load; the limit is {gpu.power_limit_w:.0f} W{usual}"
        found.append(Evidence(text=text, value=gpu.power_w, unit="W"))
    return found


def _remedies(gpu: GpuUse, cut: Throttle) -> list[Remedy]:
    if cut is gpu.brake:
        return [Remedy(id="gpu.power_supply", safety="exact", change="have the machine's power supply looked at")]
    if _is_lowered(gpu):
        change = f"nvidia-smi -i {gpu.index} -pl {gpu.power_limit_default_w:.0f}"
        return [Remedy(id="gpu.power_limit", safety="exact", change=change)]
    return [Remedy(id="precision.bf16", safety="numeric", change="bf16 autocast, where it is not used yet")]


RULE = Rule(code="GPU002", name="power-capped", page=PAGE, check=check)
