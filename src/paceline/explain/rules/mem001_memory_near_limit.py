"""MEM001: is there little memory left?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_NEAR = 0.9
_FULL = 0.97

PAGE = """
## What it means

The run needs nearly all the memory there is, of the GPU or of the host. A longer sequence, a larger last batch
or an evaluation can end it. On a GPU it also costs time: when an allocation fails, torch gives all its cached
memory back to the driver, waits for the GPU, and tries again (a *retry*).

## How it is decided

On a GPU: the most that was allocated at one time is at least 90 % of its memory, or there was at least one
retry. On the host: the processes of the run together hold at least 90 % of the memory they may use, and at most
10 % of it is available (pages that processes share are counted for each, so the sum alone does not decide). 90
% is the mark other tools use too; the CUDA context and libraries take some hundred MiB besides. A GPU that is
filled to less than 97 % and never retried is only told of: that is a good use of it. Beyond that, and for the
host, it is a warning.

## What helps

`memory.checkpointing`: recompute activations instead of keeping them. `batch.smaller`: a smaller batch with
gradients accumulated over more of them. `precision.bf16`: activations of half the size. On the host,
`memory.smaller`: fewer workers, a smaller prefetch factor, smaller caches.
"""


def check(facts: Facts) -> Finding | None:
    """Decide MEM001."""
    return _on_device(facts) or _on_host(facts)


def _on_device(facts: Facts) -> Finding | None:
    found = [(r, m.peak_allocated / m.total, m.retries) for r in facts.ranks if (m := r.memory) is not None]
    found = [each for each in found if each[1] >= _NEAR or each[2]]
    if not found:
        return None
    rank, filled, retries = max(found, key=lambda each: (each[2], each[1]))
    again = f" and allocations were retried {retries} times" if retries else ""
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
                id="memory.checkpointing", safety="numeric", change="activation checkpointing of the largest blocks"
            ),
            Remedy(id="precision.bf16", safety="numeric", change="bf16 autocast, where it is not used yet"),
            Remedy(id="batch.smaller", safety="semantic", change="a smaller batch, accumulated over more micro-steps"),
        ],
        summary=f"{units.percent(filled)} of the GPU's memory was allocated{again}",
    )


def _evidence(rank: RankFacts) -> list[Evidence]:
    memory = rank.memory
    if memory is None:
        return []
    text = (
        f"at most {units.size(memory.peak_allocated)} of {units.size(memory.total)} were allocated "
        f"({memory.readings} readings)"
    )
    found = [Evidence(text=text, value=memory.peak_allocated, unit="bytes")]
    if memory.retries:
        text = f"the allocator freed its cache and tried again {memory.retries} times"
        found.append(Evidence(text=text, value=float(memory.retries), unit="retries"))
    return found


def _on_host(facts: Facts) -> Finding | None:
    host = facts.host
    held, limit, left = host.own_rss_bytes, host.memory_limit_bytes, host.available_bytes
    if held is None or not limit or held < _NEAR * limit or (left is not None and left > (1 - _NEAR) * limit):
        return None
    text = f"the run's processes hold at most {units.size(held)} of {units.size(limit)} ({host.samples} readings)"
    return Finding(
        code="MEM001",
        name="memory-near-limit",
        severity="warning",
        confidence="medium",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[Evidence(text=text, value=held, unit="bytes")],
        remedies=[
            Remedy(
                id="memory.smaller", safety="exact", change="fewer workers, a smaller prefetch factor, smaller caches"
            )
        ],
        summary=f"the run holds {units.percent(min(1.0, held / limit))} of the host's memory",
    )


RULE = Rule(code="MEM001", name="memory-near-limit", page=PAGE, check=check)
