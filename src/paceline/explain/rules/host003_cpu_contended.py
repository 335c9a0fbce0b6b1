"""HOST003: do other processes, or a quota, take the cores?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The program wants to compute, but other processes on the host, or a CPU quota of its container, keep it from the
cores. Nothing in the program is to blame.

## How it is decided

The training thread was ready but without a CPU for at least a tenth of the time it wanted one, and either
processes outside our own tree used at least a fifth of the cores we may use, or a cgroup quota held us back at
least 5 % of the time.

## What helps

`host.cores`: move the neighbour, raise the quota, or pin this program to cores of its own.
"""


def check(facts: Facts) -> Finding | None:
    """Decide HOST003."""
    host, share = facts.host, facts.contention
    if host.allowed_cores is None or share < 0.1:
        return None
    others = (host.other_cores or 0.0) / host.allowed_cores
    throttled = host.throttled or 0.0
    if others < 0.2 and throttled < 0.05:
        return None
    gain = gain_of_removing(share, 0.3, 1.0)
    evidence = [
        Evidence(
            text=f"the training thread was ready but without a CPU {units.percent(share)} of the time it wanted one",
            value=share,
            unit="share of wanted time",
        ),
        Evidence(
            text=f"processes that are not ours used {units.percent(others)} of the {host.allowed_cores:g} "
            f"cores ({host.samples} readings)",
            value=others,
            unit="share of cores",
        ),
    ]
    if throttled >= 0.05:
        evidence.append(
            Evidence(
                text=f"a CPU quota held us back {units.percent(throttled)} of the time",
                value=throttled,
                unit="share of time",
            )
        )
    return Finding(
        code="HOST003",
        name="cpu-contended",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=evidence,
        remedies=[
            Remedy(
                id="host.cores",
                safety="exact",
                change="move the neighbour, raise the quota, or pin this program to cores of its own",
                gain=gain,
            )
        ],
        summary=f"others on this host keep the program from a CPU {units.percent(share)} of the time it wants one",
    )


RULE = Rule(code="HOST003", name="cpu-contended", page=PAGE, check=check)
