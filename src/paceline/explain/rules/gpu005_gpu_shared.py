"""GPU005: another process uses the GPU."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gpu import GpuUse, Stranger
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEAST_READINGS = 2
_LEAST_SHARE = 0.05

PAGE = """
## What it means

A process that does not belong to the watched run computes on the same GPU. The other process uses a part of the GPU
memory, and the GPU computes for only one of the two processes at a time.

## How it is detected

Paceline reports `gpu-shared` if the driver lists a process on the GPU that is not part of the watched run, in at least
two readings and in at least 5% of the readings between the first and the last step. Short uses of the GPU, such as by
`nvidia-smi`, are ignored.

Inside a container, the process ids that the driver reports may not match the process ids of the container, so Paceline
does not report `gpu-shared`. Paceline cannot measure how much time the other process costs, so it states no expected
gain.

The page [devices](../reference/devices.md) lists the hardware on which the finding `gpu-shared` was tested.

## What helps

- `gpu.exclusive`: end the other process, or choose another GPU with `CUDA_VISIBLE_DEVICES`.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding GPU005, or None if it does not apply."""
    found = [(r, gpu, them) for r, gpu in analysis.gpus if (them := _strangers(gpu))]
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
                id="gpu.exclusive",
                safety="exact",
                change=f"end process {pids} on {rank.record.host}, or use another GPU (CUDA_VISIBLE_DEVICES)",
            )
        ],
        summary=f"GPU {gpu.index} of {rank.record.host} is also used by process {pids}, which is not part of this run",
    )


def _strangers(gpu: GpuUse) -> list[Stranger]:
    least = max(_LEAST_READINGS, _LEAST_SHARE * gpu.readings)
    return [each for each in gpu.strangers if each.readings >= least]


def _cited(stranger: Stranger, gpu: GpuUse) -> Evidence:
    held = "" if stranger.memory_bytes is None else f" and holds {units.size(stranger.memory_bytes)}"
    text = f"process {stranger.pid} used the GPU in {stranger.readings} of {gpu.readings} readings{held}"
    return Evidence(text=text, value=stranger.memory_bytes, unit="bytes")


RULE = Rule(code="GPU005", name="gpu-shared", page=PAGE, check=check)
