"""MEM003: does the allocator hold far more than was ever needed at one time?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts
from paceline.explain.gpu import DeviceMemory
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_FAR_ABOVE = 1.3
_LEAST_OF_TOTAL = 0.1
_NEAR = 0.9

PAGE = """
## What it means

Torch's allocator has taken far more GPU memory from the driver than the program ever used at one time: it lies
in blocks of sizes that fit nothing. Usual causes are batches of ever other lengths and large temporary tensors.
When the GPU is full it fails for want of memory that is there.

## How it is decided

The memory reserved exceeds the most that was ever allocated at one time by at least 30 %, and the difference is
at least a tenth of the GPU's memory. Rounding of sizes explains the first tenth or two, and less than a tenth
of the GPU keeps nobody from a larger batch. It is a warning when at least 90 % of the GPU is reserved or an
allocation had to be tried again, because only then does it hurt; else it is told. No GPU has been seen by the
authors.

## What helps

`memory.expandable_segments`: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets blocks grow in place.
`data.bucket`: batches of few different lengths.
"""


def check(facts: Facts) -> Finding | None:
    """Decide MEM003."""
    found = [(rank, m) for rank in facts.ranks if (m := rank.memory) is not None and _is_fragmented(m)]
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
            Remedy(id="data.bucket", safety="semantic", change="make batches of few different lengths"),
        ],
        summary=f"{units.size(waste)} of GPU memory are reserved and were never used at one time",
    )


def _is_fragmented(memory: DeviceMemory) -> bool:
    waste = memory.reserved - memory.peak_allocated
    return memory.reserved >= _FAR_ABOVE * memory.peak_allocated and waste >= _LEAST_OF_TOTAL * memory.total


def _evidence(memory: DeviceMemory) -> list[Evidence]:
    text = (
        f"{units.size(memory.reserved)} of {units.size(memory.total)} are reserved, and at most "
        f"{units.size(memory.peak_allocated)} were allocated at one time ({memory.readings} readings)"
    )
    found = [Evidence(text=text, value=memory.reserved, unit="bytes")]
    if memory.retries:
        text = f"the allocator freed its cache and tried again {memory.retries} times"
        found.append(Evidence(text=text, value=float(memory.retries), unit="retries"))
    return found


RULE = Rule(code="MEM003", name="memory-fragmented", page=PAGE, check=check)
