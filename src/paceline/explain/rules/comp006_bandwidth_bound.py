"""COMP006: element-wise operations take most of the compute time."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.breakdown import profiled_part
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.mfu import computes_in_16_bits
from paceline.explain.analysis.profiler_window import is_elementwise
from paceline.explain.analysis.run_analysis import RunAnalysis, operators_were_timed
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import Rank

PAGE = """
## What it means

Most of the compute time is spent on operations with little arithmetic per element: additions, activation functions,
masks and normalizations. Memory bandwidth limits the speed of operations with little arithmetic. A chain of
element-wise operations reads and writes the same tensors several times.

## How it is detected

Paceline adds up the time of element-wise operators and reductions that take at least 20 µs each. Paceline reports
`bandwidth-bound` if, in the profiled steps, these operators and reductions take at least half of all operator time and
at least 30% of step time. On a GPU, the time of an operator is measured with CUDA events. If the operator times on the
GPU are not known, Paceline does not report `bandwidth-bound`.

## What helps

- `compute.compile`: `torch.compile` fuses a chain of operations into one kernel.
- `precision.autocast`: bf16 tensors need half as many bytes as fp32 tensors.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP006, or None if it does not apply."""
    rank = analysis.first
    window = rank.window
    if window is None or window.operator_s <= 0:
        return None
    if not analysis.on_cpu and not operators_were_timed(rank):
        return None  # operator times on a GPU are then times to launch the operators
    elementwise = [o for o in window.operators if is_elementwise(o.name) and o.time_s >= 20e-6 * o.count]
    part = sum(o.time_s for o in elementwise) / window.operator_s
    compute = sum(analysis.shares[name] for name in ("forward", "backward"))
    share = part * compute * profiled_part(rank.record)
    if part < 0.5 or share < 0.3:
        return None
    top = ", ".join(o.name.removeprefix("aten::") for o in elementwise[:3])
    gain = at_most(share)
    return Finding(
        code="COMP006",
        name="bandwidth-bound",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=[
            Evidence(
                text=f"{units.percent(part)} of operator time is spent in element-wise operations and reductions, "
                f"mostly in {top} ({units.count(window.steps, 'step')} profiled)",
                value=part,
                unit="share of operator time",
            ),
            words.share_of_step(share, "element-wise operations"),
        ],
        remedies=_remedies(rank.record, gain),
        summary=f"element-wise operations take {units.percent(share)} of the time, and memory bandwidth limits their "
        f"speed",
    )


def _remedies(rank: Rank, gain: Gain) -> list[Remedy]:
    """Return compilation, and autocast unless the program computes in 16 bits already."""
    fused = Remedy(
        id="compute.compile",
        safety="numeric",
        change="use torch.compile(model), which fuses chains of element-wise operations",
        gain=gain,
    )
    rounded = Remedy(
        id="precision.autocast",
        safety="numeric",
        change="use bf16 autocast, which halves the bytes that operations read and write",
        gain=gain,
    )
    return [fused] if computes_in_16_bits(rank) else [fused, rounded]


RULE = Rule(code="COMP006", name="bandwidth-bound", page=PAGE, check=check)
