"""COMP006: does element-wise work dominate?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.operators import is_elementwise
from paceline.explain.rules import Rule

PAGE = """
## What it means

Most compute time goes into operations that do little arithmetic for each number they read and write (additions,
activations, masks, normalisations). They are limited by memory bandwidth, and a chain of them reads and writes
the same tensors again and again.

## How it is decided

In the profiler window element-wise and reduction operators take at least half of operator time, and each takes
20 µs or more on average. On a GPU the times are the device's, between events around each operator; without them
nothing is said.

## What helps

`compute.compile`: `torch.compile` fuses a chain into one pass. `precision.bf16`: half the bytes.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP006."""
    rank = facts.first
    window = rank.window
    if window is None or window.operator_s <= 0:
        return None
    if not facts.on_cpu and any(o.device_self_s is None for o in window.operators):
        return None  # on a GPU the host's time in operators is that of issuing them
    elementwise = [o for o in window.operators if is_elementwise(o.name) and o.time_s >= 20e-6 * o.count]
    part = sum(o.time_s for o in elementwise) / window.operator_s
    compute = sum(facts.shares[name] for name in ("forward", "backward"))
    share = part * compute
    if part < 0.5 or share < 0.3:
        return None
    top = ", ".join(o.name.removeprefix("aten::") for o in elementwise[:3])
    gain = gain_of_removing(share, 0.15, 0.7)
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
                text=f"{units.percent(part)} of operator time is element-wise or reductions, most of it {top} "
                f"({window.steps} steps profiled)",
                value=part,
                unit="share of operator time",
            ),
            words.share_of_step(share, "element-wise work"),
        ],
        remedies=[
            Remedy(
                id="compute.compile",
                safety="numeric",
                change="torch.compile(model) fuses element-wise chains",
                gain=gain,
            ),
            Remedy(
                id="precision.bf16",
                safety="numeric",
                change="bf16 autocast halves the bytes",
                gain=gain_of_removing(share, 0.0, 0.4),
            ),
        ],
        summary=f"element-wise operations take {units.percent(share)} of the time; they are limited by memory "
        f"bandwidth",
    )


RULE = Rule(code="COMP006", name="bandwidth-bound", page=PAGE, check=check)
