"""COMM004: gradients are exchanged on every micro-step of an accumulation."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.ranks import repeated_exchanges
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The program accumulates gradients over several micro-steps. A micro-step is one forward and one backward pass, and
several micro-steps precede one optimizer update. The ranks exchange gradients in each micro-step, although one exchange
after the last micro-step is enough.

## How it is detected

Paceline counts, for each `DistributedDataParallel` module, the backward passes that exchange its gradients
(`require_backward_grad_sync`) between two optimizer steps. Paceline reports `sync-each-microstep` if one module
exchanges its gradients at least 1.5 times for each optimizer step on average, and if communication takes at least 2% of
step time. Two networks with an optimizer each, such as a GAN, exchange once for each of their updates, so Paceline does
not report them. Paceline makes no statement if the record does not hold the counts (records of earlier versions).

The expected gain assumes that all exchanges take equally long.

## What helps

- `ddp.no_sync`: run all micro-steps except the last under `model.no_sync()`. The gradients stay the same, except that
  numbers are added in another order.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMM004, or None if it does not apply."""
    repeated = repeated_exchanges(analysis)
    share = max(r.breakdown.shares["communication"] for r in analysis.ranks)
    if repeated is None or share < 0.02:
        return None
    synced = repeated.per_update
    saved = 1 - 1 / synced
    gain = at_most(share * saved)
    return Finding(
        code="COMM004",
        name="sync-each-microstep",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high",
        time_share=share * saved,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            Evidence(
                text=f"{repeated.module} exchanges its gradients {synced:.1f} times for each optimizer step "
                f"({repeated.updates} updates), but one exchange is enough",
                value=synced,
                unit="exchanges per update",
            ),
            Evidence(
                text=f"communication takes {units.percent(share)} of step time", value=share, unit="share of step time"
            ),
        ],
        remedies=[
            Remedy(
                id="ddp.no_sync",
                safety="numeric",
                change=f"run all micro-steps of {repeated.module} except the last under no_sync()",
                gain=gain,
            )
        ],
        summary=f"ranks exchange the gradients of {repeated.module} {synced:.0f} times for each update, but once is "
        f"enough",
    )


RULE = Rule(code="COMM004", name="sync-each-microstep", page=PAGE, check=check)
