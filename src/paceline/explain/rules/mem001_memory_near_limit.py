"""MEM001: little memory is left."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.mfu import computes_in_16_bits
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_NEAR = 0.9
_FULL = 0.97

PAGE = """
## What it means

The run uses nearly all memory of the GPU or of the host. A longer sequence, a larger batch or an evaluation can end the
run with an out-of-memory error. On a GPU, full memory can also cost time: if an allocation fails, torch returns its
cached memory to the driver, waits for the GPU, and tries the allocation again (a *retry*).

## How it is detected

For a GPU, Paceline reports `memory-near-limit` if the program at any time allocated at least 90% of the GPU memory, or
if torch retried at least one allocation. For the host, Paceline reports `memory-near-limit` if the processes of the run
use at least 90% of the memory that they may use, and if at most 10% of the allowed memory is still available. Paceline
also requires the second condition because the memory of a process includes pages that several processes share.

If the GPU memory is less than 97% full and there was no retry, the severity is "info", because the memory is used well.
In all other cases, the finding is a warning. The CUDA context and libraries need some hundred MiB in addition to the
allocated memory.

## What helps

- `memory.checkpoint`: recompute activations instead of storing them.
- `batch.size`: use a smaller batch, and accumulate gradients over more micro-steps.
- `precision.autocast`: activations in bf16 need half as much memory as in fp32.
- `host.memory`: on the host, use fewer loader workers, a smaller prefetch factor and smaller caches.
"""


_ROUNDED = Remedy(id="precision.autocast", safety="numeric", change="use bf16 autocast")


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding MEM001, or None if it does not apply."""
    return _on_device(analysis) or _on_host(analysis)


def _on_device(analysis: RunAnalysis) -> Finding | None:
    found = [(r, m.peak_allocated / m.total, m.retries) for r in analysis.ranks if (m := r.memory) is not None]
    found = [each for each in found if each[1] >= _NEAR or each[2]]
    if not found:
        return None
    rank, filled, retries = max(found, key=lambda each: (each[2], each[1]))
    again = f", and allocations were retried {retries} times" if retries else ""
    return Finding(
        code="MEM001",
        name="memory-near-limit",
        severity="warning" if retries or filled >= _FULL else "info",
        confidence="high",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r, _, _ in found],
        evidence=_evidence(rank),
        remedies=[
            Remedy(
                id="memory.checkpoint",
                safety="exact",
                change="recompute the activations of the largest blocks (activation checkpointing)",
            ),
            *([] if computes_in_16_bits(rank.record) else [_ROUNDED]),
            Remedy(
                id="batch.size",
                safety="semantic",
                change="use a smaller batch and accumulate gradients over more micro-steps",
            ),
        ],
        summary=f"{units.percent(filled)} of the GPU's memory was allocated{again}",
    )


def _evidence(rank: RankAnalysis) -> list[Evidence]:
    memory = rank.memory
    if memory is None:
        return []
    text = (
        f"at most {units.size(memory.peak_allocated)} of {units.size(memory.total)} were allocated "
        f"({units.count(memory.readings, 'reading')})"
    )
    found = [Evidence(text=text, value=memory.peak_allocated, unit="bytes")]
    if memory.retries:
        text = f"torch's memory allocator freed its cache and retried an allocation {memory.retries} times"
        found.append(Evidence(text=text, value=float(memory.retries), unit="retries"))
    return found


def _on_host(analysis: RunAnalysis) -> Finding | None:
    host = analysis.host
    held, limit, left = host.own_rss_bytes, host.memory_limit_bytes, host.available_bytes
    if held is None or not limit or held < _NEAR * limit or (left is not None and left > (1 - _NEAR) * limit):
        return None
    readings = units.count(host.samples, "reading")
    text = f"the processes of the run use at most {units.size(held)} of {units.size(limit)} ({readings})"
    return Finding(
        code="MEM001",
        name="memory-near-limit",
        severity="warning",
        confidence="medium",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[Evidence(text=text, value=held, unit="bytes")],
        remedies=[
            Remedy(
                id="host.memory",
                safety="exact",
                change="use fewer workers, a smaller prefetch factor and smaller caches",
            )
        ],
        summary=f"the run uses {units.percent(min(1.0, held / limit))} of the host's memory",
    )


RULE = Rule(code="MEM001", name="memory-near-limit", page=PAGE, check=check)
