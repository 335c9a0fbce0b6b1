"""GPU005: does somebody else use the GPU too?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts
from paceline.explain.gpu import GpuUse, Stranger
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEAST_READINGS = 2
_LEAST_SHARE = 0.05

PAGE = """
## What it means

A process that does not belong to this run computes on the same GPU. It takes memory, and the two take turns:
while its kernels run, ours wait.

## How it is decided

The driver lists a process on the GPU that is surely not of our own process tree, in at least two readings and
in at least 5 % of those between the first and the last step: somebody who only looked (`nvidia-smi`, another
program's start) is none. Inside a container a process number may be another host's, so there nobody is called a
stranger. How much time it costs cannot be told from outside, so no gain is promised. No GPU has been seen by
the authors.

## What helps

`gpu.alone`: end the other process, or choose another GPU with `CUDA_VISIBLE_DEVICES`.
"""


def check(facts: Facts) -> Finding | None:
    """Decide GPU005."""
    found = [(r, gpu, them) for r, gpu in facts.gpus if (them := _strangers(gpu))]
    if not found:
        return None
    rank, gpu, strangers = max(found, key=lambda each: len(each[2]))
    pids = ", ".join(str(each.pid) for each in strangers[:3])
    return Finding(
        code="GPU005",
        name="gpu-shared",
        severity="warning",
        confidence="high",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r, _, _ in found],
        evidence=[_cited(each, gpu) for each in strangers[:3]],
        remedies=[
            Remedy(
                id="gpu.alone",
                safety="exact",
                change=f"end process {pids} on {rank.record.host}, or use another GPU (CUDA_VISIBLE_DEVICES)",
            )
        ],
        summary=f"GPU {gpu.index} of {rank.record.host} is also used by process {pids}, which is not of this run",
    )


def _strangers(gpu: GpuUse) -> list[Stranger]:
    least = max(_LEAST_READINGS, _LEAST_SHARE * gpu.readings)
    return [each for each in gpu.strangers if each.readings >= least]


def _cited(stranger: Stranger, gpu: GpuUse) -> Evidence:
    held = "" if stranger.memory_bytes is None else f" and holds {units.size(stranger.memory_bytes)}"
    text = f"process {stranger.pid} was on it in {stranger.readings} of {gpu.readings} readings{held}"
    return Evidence(text=text, value=stranger.memory_bytes, unit="bytes")


RULE = Rule(code="GPU005", name="gpu-shared", page=PAGE, check=check)
