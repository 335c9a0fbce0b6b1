"""GPU003: the PCIe link of the GPU is slower than possible."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.gpu import GpuUse, PcieLink, pcie_bytes_per_s
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

_LEAST_READINGS = 3
_WORTH = 0.05

PAGE = """
## What it means

The GPU is connected with fewer PCIe lanes, or with an older PCIe generation, than the card and the slot support. At
half the link speed, for example, copies to and from the GPU take twice as long. Usual causes are a card that is not
inserted fully, a faulty riser or cable, a slot that shares its lanes with another slot, or a firmware setting.

## How it is detected

Paceline takes the fastest PCIe link that it measured in at least three readings under load. Paceline reports
`pcie-degraded` if the fastest measured link is slower than the link that the card and the slot both support
(`pcie_max_gen`, `pcie_max_width`), or if the slot supports an older PCIe generation than the card. Paceline uses only
readings in which the GPU computes during at least half of the time, because an idle GPU lowers its link speed to save
power.

The expected gain is the speed-up if copies ran at the full link speed. For example, at half the link speed, copies take
twice as long, so half of the copy time could be saved. If copies take less than 5% of step time, Paceline states no
expected gain. The link speeds come from the PCIe specifications.

The page [devices](../reference/devices.md) lists the hardware on which the finding `pcie-degraded` was tested.

## What helps

- `gpu.pcie_slot`: take the card out and insert it again, try another slot or riser, and check the link speed in the
  firmware settings.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding GPU003, or None if it does not apply."""
    found = [(r, gpu, gpu.link) for r, gpu in analysis.gpus if gpu.link is not None and _is_degraded(gpu.link)]
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
        remedies=[
            Remedy(
                id="gpu.pcie_slot",
                safety="exact",
                change="take the card out and insert it again, or try another slot",
                gain=gain,
            )
        ],
        summary=f"GPU {gpu.index} is connected with PCIe {link.generation}.0 x{link.lanes}; "
        f"{_best_generation(link)}.0 x{link.max_lanes} is possible",
    )


def _best_generation(link: PcieLink) -> int:
    return max(link.max_generation, link.card_max_generation or 0)


def _is_degraded(link: PcieLink) -> bool:
    slower = link.generation < _best_generation(link) or link.lanes < link.max_lanes
    return slower and link.readings >= _LEAST_READINGS


def _rate(link: PcieLink) -> float | None:
    return pcie_bytes_per_s(link.generation, link.lanes)


def _gain(link: PcieLink, share: float) -> Gain | None:
    now, best = _rate(link), pcie_bytes_per_s(_best_generation(link), link.max_lanes)
    if share < _WORTH or now is None or best is None:
        return None
    return at_most(share * (1 - now / best))


def _evidence(gpu: GpuUse, link: PcieLink, share: float) -> list[Evidence]:
    found = [
        Evidence(
            text=f"the PCIe link of GPU {gpu.index} ({gpu.name}) was at most PCIe {link.generation}.0 with "
            f"{link.lanes} lanes in {link.readings} readings under load, but the card and the slot support PCIe "
            f"{link.max_generation}.0 with {link.max_lanes} lanes",
            value=float(link.lanes),
            unit="lanes",
        ),
        Evidence(text=f"copies take {units.percent(share)} of step time", value=share, unit="share of step time"),
    ]
    if (link.card_max_generation or 0) > link.max_generation:
        text = f"the card supports PCIe {link.card_max_generation}.0, but the slot supports only an older generation"
        found.append(Evidence(text=text, value=float(link.card_max_generation or 0), unit="generation"))
    return found


RULE = Rule(code="GPU003", name="pcie-degraded", page=PAGE, check=check)
