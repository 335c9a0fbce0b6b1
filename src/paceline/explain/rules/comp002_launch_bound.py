"""COMP002: are there so many tiny operations that issuing them is the work?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The step consists of very many small operations. The time goes into issuing each of them (Python, dispatch,
autograd, a kernel launch), not into arithmetic.

## How it is decided

In the profiler window a step issues at least 200 operators, and operators of less than 20 µs on average take at
least half of all operator time, or operators together fill less than half of the compute phases (the rest is
Python between them).

## What helps

`compute.compile`: `torch.compile` fuses chains of small operations and drops the Python between them.
`compute.batch_ops`: replace loops over rows or heads by one batched operation. `batch.larger`: a larger batch
makes every operation larger.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP002."""
    rank = facts.first
    window = rank.window
    if window is None:
        return None
    compute = facts.shares["forward"] + facts.shares["backward"]
    filled = window.operator_s / max(window.wall_s, 1e-9)
    small = window.tiny_share * filled + max(0.0, compute - filled)
    if window.operators_per_step < 200 or small < 0.5 * compute or compute < 0.4:
        return None
    share = min(small, compute)
    mean = window.operator_s / max(1.0, sum(o.count for o in window.operators))
    text = (
        f"a step issues {window.operators_per_step:,.0f} operators of {units.seconds(mean)} each on "
        f"average ({window.steps} steps profiled)"
    )
    gain = gain_of_removing(share, 0.15, 0.75)
    return Finding(
        code="COMP002",
        name="launch-bound",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=[
            Evidence(text=text, value=window.operators_per_step, unit="operators per step"),
            words.share_of_step(share, "issuing small operators and the Python between them"),
        ],
        remedies=[
            Remedy(
                id="compute.batch_ops",
                safety="numeric",
                change="replace loops of small operations by batched ones",
                gain=gain,
            ),
            Remedy(
                id="compute.compile",
                safety="numeric",
                change="torch.compile(model)",
                gain=gain_of_removing(share, 0.1, 0.6),
            ),
        ],
        summary=f"a step issues {window.operators_per_step:,.0f} small operators; issuing them is the work",
    )


RULE = Rule(code="COMP002", name="launch-bound", page=PAGE, check=check)
