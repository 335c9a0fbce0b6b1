"""HOST001: are there more compute threads than cores?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

More threads want to compute than there are cores. They take turns, and threads that wait for each other at the
end of every operation wait for the slowest.

## How it is decided

Compute threads (torch's, over all ranks on the host) exceed the cores we may use, and the training thread was
ready but without a CPU for at least a tenth of the time it wanted one.

## What helps

`host.threads`: as many threads as cores, divided by the ranks on the host (`torch.set_num_threads`,
`OMP_NUM_THREADS`).
"""


def check(facts: Facts) -> Finding | None:
    """Decide HOST001."""
    cores = facts.host.allowed_cores
    if cores is None:
        return None
    threads = sum(int(r.record.meta.get("threads", 1)) for r in facts.ranks if r.record.host == facts.first.record.host)
    share = facts.contention
    if threads < 1.5 * cores or share < 0.1:
        return None
    here = sum(r.record.host == facts.first.record.host for r in facts.ranks)
    right = max(1, int(cores // here))
    gain = gain_of_removing(share, 0.2, 1.0)
    return Finding(
        code="HOST001",
        name="cpu-oversubscribed",
        severity="critical" if share >= 0.3 else "warning",
        confidence="high" if threads >= 2 * cores else "medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            Evidence(text=f"{threads} compute threads share {cores:g} cores", value=float(threads), unit="threads"),
            Evidence(
                text=f"the training thread was ready but without a CPU {units.percent(share)} of the time it "
                f"wanted one",
                value=share,
                unit="share of wanted time",
            ),
        ],
        remedies=[
            Remedy(
                id="host.threads",
                safety="numeric",
                change=f"torch.set_num_threads({right}) or OMP_NUM_THREADS={right}",
                gain=gain,
            )
        ],
        summary=f"{threads} compute threads share {cores:g} cores",
    )


RULE = Rule(code="HOST001", name="cpu-oversubscribed", page=PAGE, check=check)
