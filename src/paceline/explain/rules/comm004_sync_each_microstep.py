"""COMM004: are gradients exchanged on every micro-step of an accumulation?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.ranks import syncs_too_often
from paceline.explain.rules import Rule

PAGE = """
## What it means

Gradients are accumulated over several micro-steps, but every one of them exchanges gradients between the ranks.
Only the last exchange is needed.

## How it is decided

A step has at least two micro-steps, and more than one of them ran with gradient synchronisation on
(`DistributedDataParallel.require_backward_grad_sync`), and communication takes at least 2 % of step time.

## What helps

`ddp.no_sync`: run all micro-steps but the last under `model.no_sync()`. The sum is the same up to the order of
additions.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMM004."""
    rank = facts.first
    share = max(r.breakdown.shares["communication"] for r in facts.ranks)
    if not syncs_too_often(facts) or share < 0.02:
        return None
    micro, synced = float(rank.rows["micro_steps"].mean()), float(rank.rows["synced"].mean())
    saved = 1 - 1 / synced
    gain = gain_of_removing(share, 0.3 * saved, saved)
    return Finding(
        code="COMM004",
        name="sync-each-microstep",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high",
        time_share=share * saved,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            Evidence(
                text=f"{synced:.1f} of {micro:.1f} micro-steps in a step exchange gradients; one has to",
                value=synced,
                unit="exchanges per step",
            ),
            Evidence(
                text=f"communication takes {units.percent(share)} of step time", value=share, unit="share of step time"
            ),
        ],
        remedies=[
            Remedy(
                id="ddp.no_sync",
                safety="numeric",
                change="run all micro-steps but the last under model.no_sync()",
                gain=gain,
            )
        ],
        summary=f"gradients are exchanged {synced:.0f} times a step where once would do",
    )


RULE = Rule(code="COMM004", name="sync-each-microstep", page=PAGE, check=check)
