"""COMP004: matrices are multiplied in fp32 on a GPU with faster formats."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.mfu import capability, number_format
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis, matrix_share
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

_TENSOR_CORES = 7.0
_BF16 = 8.0
_LEAST_SHARE = 0.1
_LEAST_RATIO = 2.0

PAGE = """
## What it means

The GPU multiplies matrices in TF32, bf16 or fp16 several times as fast as in fp32, but the program multiplies matrices
in fp32. The parameters are fp32, autocast is not used, and TF32 is off (the default of torch).

## How it is detected

Paceline reports `precision-unused` if the GPU has a compute capability of at least 7.0 (fp16 tensor cores; bf16 and
TF32 from 8.0 on), and if matrix products in fp32 take at least a tenth of step time. Paceline computes the share of
matrix products from the time that matrix operators take on the GPU in the profiled step. Without a profiled step,
Paceline uses a lower bound: the time that the matrix products would take at the GPU's fp32 peak rate.

The expected speed-up of the matrix products is at most the ratio of the GPU's peak rates in the two data types (2 if
Paceline does not know the GPU). How much of it is reached is assumed, because type conversions and memory traffic do
not become faster.

The page [devices](../reference/devices.md) lists the hardware on which the finding `precision-unused` was tested.

## What helps

- `precision.tf32`: add the line `torch.set_float32_matmul_precision("high")` to the program.
- `precision.autocast`: put `torch.autocast("cuda", dtype=torch.bfloat16)` around the forward pass.
- `precision.fp16`: on GPUs with a compute capability below 8.0, use autocast with fp16 and a `GradScaler`.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP004, or None if it does not apply."""
    rank = analysis.first
    able = capability(rank.record.meta)
    if analysis.on_cpu or able < _TENSOR_CORES or number_format(rank.record, rank.window) != "fp32":
        return None
    share = _fp32_share(rank)
    if share is None or share < _LEAST_SHARE:
        return None
    most = 1 - 1 / _ratio(rank, "bf16" if able >= _BF16 else "fp16")
    gain = at_most(share * most)
    return Finding(
        code="COMP004",
        name="precision-unused",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=_evidence(rank, share),
        remedies=_remedies(rank, share, able, gain),
        summary=f"fp32 matrix products take {units.percent(share)} of the time; this GPU multiplies matrices faster "
        f"in other data types",
    )


def _fp32_share(rank: RankAnalysis) -> float | None:
    """Return the share of step time in matrix products, measured or as a lower bound, or None if both are unknown."""
    measured = matrix_share(rank)
    if measured is not None:
        return measured
    gpu, flops = rank.mfu.gpu, rank.mfu.flops_per_step
    if gpu is None or not flops or "fp32" not in gpu.peak_flops or rank.breakdown.step_s.value <= 0:
        return None
    return min(1.0, flops / gpu.peak_flops["fp32"] / rank.breakdown.step_s.value)


def _ratio(rank: RankAnalysis, kind: str) -> float:
    """Return the GPU's peak rate in a number format, divided by its peak rate in fp32."""
    peaks = rank.mfu.gpu.peak_flops if rank.mfu.gpu else {}
    if kind not in peaks or "fp32" not in peaks:
        return _LEAST_RATIO
    return max(1.0, peaks[kind] / peaks["fp32"])


def _evidence(rank: RankAnalysis, share: float) -> list[Evidence]:
    meta = rank.record.meta
    told = (
        f"the parameters are fp32, autocast is not used, and TF32 is off on the {meta.get('device_name')} "
        f"(compute capability {meta.get('capability')})"
    )
    found = [
        words.share_of_step(share, "matrix multiplication"),
        Evidence(text=told, value=capability(meta), unit="compute capability"),
    ]
    if rank.mfu.flops_per_step:
        text = f"a step takes {rank.mfu.flops_per_step / 1e12:,.3g} TFLOP in matrix products (1 step profiled)"
        found.append(Evidence(text=text, value=rank.mfu.flops_per_step, unit="FLOP per step"))
    return found


def _remedies(rank: RankAnalysis, share: float, able: float, gain: Gain) -> list[Remedy]:
    if able < _BF16:
        change = 'torch.autocast("cuda", dtype=torch.float16) with torch.amp.GradScaler'
        return [Remedy(id="precision.fp16", safety="numeric", change=change, gain=gain)]
    tf32 = 1 - 1 / _ratio(rank, "tf32")
    change = 'torch.autocast("cuda", dtype=torch.bfloat16) around the forward pass'
    line = 'torch.set_float32_matmul_precision("high")'
    return [
        Remedy(id="precision.autocast", safety="numeric", change=change, gain=gain),
        Remedy(id="precision.tf32", safety="numeric", change=line, gain=at_most(share * tf32)),
    ]


RULE = Rule(code="COMP004", name="precision-unused", page=PAGE, check=check)
