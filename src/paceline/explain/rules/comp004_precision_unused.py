"""COMP004: are matrices multiplied in fp32 on a GPU that is faster in other formats?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.matrix import matrix_share
from paceline.explain.mfu import capability, number_format
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

_TENSOR_CORES = 7.0
_BF16 = 8.0
_LEAST_SHARE = 0.1
_LEAST_RATIO = 2.0

PAGE = """
## What it means

The GPU has units that multiply matrices in TF32, bf16 or fp16 several times as fast as in fp32, and the run
does not use them: parameters are fp32, there is no autocast, and TF32 is off (torch's default for matrix
products).

## How it is decided

The GPU's compute capability is at least 7.0 (fp16 tensor cores; from 8.0 on also bf16 and TF32), matrices are
multiplied in fp32, and that takes at least a tenth of step time: by the device's time in matrix operators of
the profiled step, or, where that was not taken, by the time that its operations need at least at the card's
fp32 peak. Below a tenth even an endless speed-up of them gains no more than a ninth. The gain is at most what
the ratio of the card's peak rates gives, twice where the card is not in the table (about the least ratio in
it), and at least a third of that, because converting and memory traffic stay. No GPU has been seen by the
authors.

## What helps

`precision.tf32`: `torch.set_float32_matmul_precision("high")`, one line. `precision.bf16`:
`torch.autocast("cuda", dtype=torch.bfloat16)` around the forward. `precision.fp16`: before 8.0, autocast with
fp16 and a `GradScaler`.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP004."""
    rank = facts.first
    able = capability(rank.record.meta)
    if facts.on_cpu or able < _TENSOR_CORES or number_format(rank.record, rank.window) != "fp32":
        return None
    share = _fp32_share(rank)
    if share is None or share < _LEAST_SHARE:
        return None
    most = 1 - 1 / _ratio(rank, "bf16" if able >= _BF16 else "fp16")
    gain = gain_of_removing(share, most / 3, most)
    return Finding(
        code="COMP004",
        name="precision-unused",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=_evidence(rank, share),
        remedies=_remedies(rank, share, able, gain),
        summary=f"matrix products in fp32 take {units.percent(share)} of the time; this GPU is faster in other formats",
    )


def _fp32_share(rank: RankFacts) -> float | None:
    """Return the share of step time in matrix work, measured or at least; None when neither is known."""
    measured = matrix_share(rank)
    if measured is not None:
        return measured
    gpu, flops = rank.mfu.gpu, rank.mfu.flops_per_step
    if gpu is None or not flops or "fp32" not in gpu.peak_flops or rank.breakdown.step_s.value <= 0:
        return None
    return min(1.0, flops / gpu.peak_flops["fp32"] / rank.breakdown.step_s.value)


def _ratio(rank: RankFacts, kind: str) -> float:
    """Return how much faster the GPU is in another format, by its peaks."""
    peaks = rank.mfu.gpu.peak_flops if rank.mfu.gpu else {}
    if kind not in peaks or "fp32" not in peaks:
        return _LEAST_RATIO
    return max(1.0, peaks[kind] / peaks["fp32"])


def _evidence(rank: RankFacts, share: float) -> list[Evidence]:
    meta = rank.record.meta
    told = (
        f"parameters are fp32, autocast is not used and TF32 is off on {meta.get('device_name')} "
        f"(compute capability {meta.get('capability')})"
    )
    found = [
        words.share_of_step(share, "multiplying matrices"),
        Evidence(text=told, value=capability(meta), unit="compute capability"),
    ]
    if rank.mfu.flops_per_step:
        text = f"a step takes {rank.mfu.flops_per_step / 1e12:,.3g} TFLOP of matrix work (1 step profiled)"
        found.append(Evidence(text=text, value=rank.mfu.flops_per_step, unit="FLOP per step"))
    return found


def _remedies(rank: RankFacts, share: float, able: float, gain: Gain) -> list[Remedy]:
    if able < _BF16:
        change = 'torch.autocast("cuda", dtype=torch.float16) with torch.amp.GradScaler'
        return [Remedy(id="precision.fp16", safety="numeric", change=change, gain=gain)]
    tf32 = 1 - 1 / _ratio(rank, "tf32")
    change = 'torch.autocast("cuda", dtype=torch.bfloat16) around the forward'
    line = 'torch.set_float32_matmul_precision("high")'
    return [
        Remedy(id="precision.bf16", safety="numeric", change=change, gain=gain),
        Remedy(id="precision.tf32", safety="numeric", change=line, gain=gain_of_removing(share, tf32 / 3, tf32)),
    ]


RULE = Rule(code="COMP004", name="precision-unused", page=PAGE, check=check)
