"""COMM002: does one rank make the others wait?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.ranks import straggler
from paceline.explain.rules import Rule

PAGE = """
## What it means

Synchronous training runs at the pace of its slowest rank. One rank is busy longer than the others, and they
wait for it in every exchange.

## How it is decided

The rank that is busy longest (step time without communication) exceeds the median of the others by at least 10 %
of a step, and the others spend about that much more time in communication than it does. Its own cause is the
phase in which it exceeds the others most.

## What helps

Whatever helps the phase named: the straggler's loader, its host, its device. `ranks.balance`: give every rank
the same work.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMM002."""
    late = straggler(facts)
    if late is None:
        return None
    share = late.excess_s / late.step_s
    gain = gain_of_removing(share, 0.5, 1.0)
    return Finding(
        code="COMM002",
        name="rank-straggling",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high",
        time_share=share,
        gain=gain,
        ranks=[late.rank],
        evidence=[
            Evidence(
                text=f"rank {late.rank} is busy {units.seconds(late.own_s)} a step, the others "
                f"{units.seconds(late.own_s - late.excess_s)} in the median",
                value=late.excess_s,
                unit="s",
            ),
            Evidence(
                text=f"{units.percent(late.phase_share)} of the difference is in its {late.phase} phase{late.where}",
                value=late.phase_share,
                unit="share of the difference",
            ),
            Evidence(
                text=f"the others wait {units.percent(late.others_waiting)} of a step in communication, it "
                f"waits {units.percent(late.waiting)}",
                value=late.others_waiting,
                unit="share of step time",
            ),
        ],
        remedies=[
            Remedy(
                id="ranks.balance",
                safety="exact",
                change=f"mend the {late.phase} phase of rank {late.rank}{late.where}",
                gain=gain,
            )
        ],
        summary=f"rank {late.rank} makes the others wait {units.percent(share)} of the time, by its "
        f"{late.phase} phase{late.where}",
    )


RULE = Rule(code="COMM002", name="rank-straggling", page=PAGE, check=check)
