"""COMM004: gradients are exchanged on every micro-step of an accumulation."""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.ranks import syncs_too_often
from paceline.explain.rules import Rule

PAGE = """
## What it means

The program accumulates gradients over several micro-steps. A micro-step is one forward and one backward pass, and
several micro-steps precede one optimizer update. The ranks exchange gradients in each micro-step, although one exchange
after the last micro-step is enough.

## How it is detected

Paceline reports `sync-each-microstep` if a step has at least two micro-steps, if more than one of the micro-steps
exchanges gradients (`DistributedDataParallel.require_backward_grad_sync`), and if communication takes at least 2% of
step time.

## What helps

- `ddp.no_sync`: run all micro-steps except the last under `model.no_sync()`. The gradients stay the same, except that
  numbers are added in another order.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding COMM004, or None if it does not apply."""
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
                text=f"{synced:.1f} of the {micro:.1f} micro-steps of a step exchange gradients, but one exchange per "
                f"step is enough",
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
                change="run all micro-steps except the last under model.no_sync()",
                gain=gain,
            )
        ],
        summary=f"ranks exchange gradients {synced:.0f} times per step, but once per step is enough",
    )


RULE = Rule(code="COMM004", name="sync-each-microstep", page=PAGE, check=check)
