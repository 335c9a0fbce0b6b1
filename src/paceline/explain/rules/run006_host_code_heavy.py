"""RUN006: does the program's own Python between the phases take a large share?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import TELLABLE_S, Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

Between the phases of a step (after the backward, between steps, before the backward) the program runs code of
its own: metrics, logging, plots, progress. The device waits for it.

## How it is decided

Time in no phase, or between a forward and its backward on lines that do not make the loss, takes at least 8 %
of step time, and 0.2 ms of a step (less is not told from what watching costs). Functions are named by stack
samples, 50 a second. Lines that make the next forward's input are data waiting, not host code.

## What helps

`host.less_often`: do it every n-th step. `host.vectorise`: replace Python loops by tensor operations. Both are
shown at the line; nothing is injected.
"""


def check(facts: Facts) -> Finding | None:
    """Decide RUN006."""
    share = facts.shares["other"]
    rank = facts.first
    if share < 0.08 or share * rank.breakdown.step_s.value < TELLABLE_S:
        return None
    functions = rank.breakdown.host_functions
    where = f" in {functions[0].function}" if functions else ""
    return Finding(
        code="RUN006",
        name="host-code-heavy",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high" if functions and functions[0].count >= 10 else "medium",
        time_share=share,
        gain=gain_of_removing(share, 0.5, 0.95),
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            words.share_of_step(share, "the program's own code between phases"),
            *(
                Evidence(
                    text=f"{units.percent(f.share)} of its stack samples are in {f.function} ({f.count} samples)",
                    value=f.share,
                    unit="share of samples",
                )
                for f in functions[:3]
            ),
        ],
        remedies=[
            Remedy(
                id="host.less_often",
                safety="exact",
                change=f"do the work{where} every n-th step",
                gain=gain_of_removing(share, 0.5, 0.95),
            ),
            Remedy(
                id="host.vectorise",
                safety="numeric",
                change=f"replace Python loops{where} by tensor operations",
                gain=gain_of_removing(share, 0.3, 0.9),
            ),
        ],
        summary=f"the program's own code between phases{where} takes {units.percent(share)} of the time",
    )


RULE = Rule(code="RUN006", name="host-code-heavy", page=PAGE, check=check)
