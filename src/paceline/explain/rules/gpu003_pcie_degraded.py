"""GPU003: does the link to the GPU run below what card and slot can do?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.gpu import GpuUse, Link
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule
from paceline.hardware.link import pcie_bytes_per_s

_LEAST_READINGS = 3
_WORTH = 0.05

PAGE = """
## What it means

The GPU is connected with fewer PCIe lanes, or at an older generation, than card and slot are able to. Copies to
and from the GPU take longer by the ratio. Usual causes: a card that does not sit right, a riser or cable, a
slot that shares its lanes, a setting in the firmware.

## How it is decided

In at least three readings under load the best link seen is below the most that card and slot can do together
(`pcie_max_gen`, `pcie_max_width`), or the slot's generation is below the card's own. Only readings under load
count (at least half of the time computing): a GPU that has nothing to do lowers its link to save power. The
gain is of the copies' share of a step: with a link of half the rate they take twice as long, so half of that
share could go; where copies take less than 5 % of a step nothing is promised. Rates are those of the PCIe
specifications. No GPU has been seen by the authors.

## What helps

`gpu.slot`: seat the card again, try another slot or riser, look for the link speed in the firmware's settings.
"""


def check(facts: Facts) -> Finding | None:
    """Decide GPU003."""
    found = [(r, gpu, gpu.link) for r, gpu in facts.gpus if gpu.link is not None and _is_degraded(gpu.link)]
    if not found:
        return None
    rank, gpu, link = min(found, key=lambda each: _rate(each[2]) or 0.0)
    share = rank.breakdown.shares["transfer"]
    gain = _gain(link, share)
    return Finding(
        code="GPU003",
        name="pcie-degraded",
        severity="warning" if gain else "info",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r, _, _ in found],
        evidence=_evidence(gpu, link, share),
        remedies=[Remedy(id="gpu.slot", safety="exact", change="seat the card again, or try another slot", gain=gain)],
        summary=f"GPU {gpu.index} is on PCIe {link.generation}.0 x{link.lanes}; "
        f"{_best_generation(link)}.0 x{link.max_lanes} is possible",
    )


def _best_generation(link: Link) -> int:
    return max(link.max_generation, link.card_max_generation or 0)


def _is_degraded(link: Link) -> bool:
    slower = link.generation < _best_generation(link) or link.lanes < link.max_lanes
    return slower and link.readings >= _LEAST_READINGS


def _rate(link: Link) -> float | None:
    return pcie_bytes_per_s(link.generation, link.lanes)


def _gain(link: Link, share: float) -> Gain | None:
    now, best = _rate(link), pcie_bytes_per_s(_best_generation(link), link.max_lanes)
    if share < _WORTH or now is None or best is None:
        return None
    return gain_of_removing(share, 0.5 * (1 - now / best), 1 - now / best)


def _evidence(gpu: GpuUse, link: Link, share: float) -> list[Evidence]:
    found = [
        Evidence(
            text=f"the link of GPU {gpu.index} ({gpu.name}) was at most generation {link.generation} with "
            f"{link.lanes} lanes in {link.readings} readings under load; card and slot can do generation "
            f"{link.max_generation} with {link.max_lanes}",
            value=float(link.lanes),
            unit="lanes",
        ),
        Evidence(text=f"copies take {units.percent(share)} of step time", value=share, unit="share of step time"),
    ]
    if (link.card_max_generation or 0) > link.max_generation:
        text = f"the card itself can do generation {link.card_max_generation}: the slot holds it back"
        found.append(Evidence(text=text, value=float(link.card_max_generation or 0), unit="generation"))
    return found


RULE = Rule(code="GPU003", name="pcie-degraded", page=PAGE, check=check)
