"""MEM003: GPU memory is fragmented."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gpu import DeviceMemory
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_FAR_ABOVE = 1.3
_LEAST_OF_TOTAL = 0.1
_NEAR = 0.9

PAGE = """
## What it means

Torch's memory allocator has reserved far more GPU memory than the program used at any one time, because the allocator's
free blocks are too small for new tensors (fragmentation). Usual causes are batches of varying lengths and large
temporary tensors. If the GPU memory is nearly full, an allocation can fail although enough memory is free in total.

## How it is detected

Paceline reports `memory-fragmented` if the reserved memory exceeds the largest amount allocated at one time by at
least 30%, and if the difference is at least a tenth of the GPU's memory. Smaller differences are normal, because the
allocator rounds sizes up. The finding is a warning if at least 90% of the GPU's memory is reserved, or if torch retried
an allocation. In all other cases, the severity of the finding is "info".

The page [devices](../reference/devices.md) lists the hardware on which the finding `memory-fragmented` was tested.

## What helps

- `memory.expandable_segments`: with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, the allocator extends its
  memory segments instead of adding new ones.
- `shapes.bucket`: use batches with only a few different lengths.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding MEM003, or None if it does not apply."""
    found = [(rank, m) for rank in analysis.ranks if (m := rank.memory) is not None and _is_fragmented(m)]
    if not found:
        return None
    rank, memory = max(found, key=lambda each: each[1].reserved - each[1].peak_allocated)
    waste = memory.reserved - memory.peak_allocated
    hurts = memory.retries > 0 or memory.reserved >= _NEAR * memory.total
    return Finding(
        code="MEM003",
        name="memory-fragmented",
        severity="warning" if hurts else "info",
        confidence="medium",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r, _ in found],
        evidence=_evidence(memory),
        remedies=[
            Remedy(
                id="memory.expandable_segments",
                safety="exact",
                change="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
            Remedy(id="shapes.bucket", safety="semantic", change="use batches with only a few different lengths"),
        ],
        summary=f"{units.size(waste)} of GPU memory were reserved but not used at any time",
    )


def _is_fragmented(memory: DeviceMemory) -> bool:
    waste = memory.reserved - memory.peak_allocated
    return memory.reserved >= _FAR_ABOVE * memory.peak_allocated and waste >= _LEAST_OF_TOTAL * memory.total


def _evidence(memory: DeviceMemory) -> list[Evidence]:
    text = (
        f"{units.size(memory.reserved)} of {units.size(memory.total)} are reserved, and at most "
        f"{units.size(memory.peak_allocated)} were allocated at one time ({units.count(memory.readings, 'reading')})"
    )
    found = [Evidence(text=text, value=memory.reserved, unit="bytes")]
    if memory.retries:
        text = f"torch's memory allocator freed its cache and retried an allocation {memory.retries} times"
        found.append(Evidence(text=text, value=float(memory.retries), unit="retries"))
    return found


RULE = Rule(code="MEM003", name="memory-fragmented", page=PAGE, check=check)
