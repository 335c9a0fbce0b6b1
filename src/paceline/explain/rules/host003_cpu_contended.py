"""HOST003: other processes or a CPU quota take the cores."""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The program gets too little CPU time, because other processes on the host use the CPU cores, or because of the CPU quota
of its container. The program itself is not the cause.

## How it is detected

Paceline reports `cpu-contended` if the training thread waits for a CPU core during at least a tenth of the time in
which it is running or ready to run. The finding also requires that processes outside the watched run use at least a
fifth of the cores that the program may use, or that a cgroup quota stops the program during at least 5% of the time.

## What helps

- `host.cores`: move the other programs to another machine, raise the CPU quota, or pin the program to free cores.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding HOST003, or None if it does not apply."""
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
            text=f"the training thread waited for a CPU core during {units.percent(share)} of the time in which "
            "it could run",
            value=share,
            unit="share of wanted time",
        ),
        Evidence(
            text=f"processes outside this run used {units.percent(others)} of the {host.allowed_cores:g} CPU cores "
            f"that the program may use ({host.samples} readings)",
            value=others,
            unit="share of cores",
        ),
    ]
    if throttled >= 0.05:
        evidence.append(
            Evidence(
                text=f"a CPU quota stopped the program during {units.percent(throttled)} of the time",
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
                change="move the other programs to another machine, raise the CPU quota, or pin the program to free "
                "cores",
                gain=gain,
            )
        ],
        summary=f"the program waits for a CPU core during {units.percent(share)} of the time in which it could run",
    )


RULE = Rule(code="HOST003", name="cpu-contended", page=PAGE, check=check)
