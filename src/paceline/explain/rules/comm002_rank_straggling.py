"""COMM002: does one rank make the others wait?"""

from __future__ import annotations

from paceline import units
from paceline.explain import spans
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.ranks import straggler
from paceline.explain.rules import Rule
from paceline.traces.many import Traces

_LEAST = 0.05
_OFTEN = 3

PAGE = """
## What it means

Synchronous training runs at the pace of its slowest rank. One rank is busy longer than the others, and they
wait for it in every exchange.

## How it is decided

The rank that is busy longest (step time without communication) exceeds the median of the others by at least 10 %
of a step, and the others spend about that much more time in communication than it does. Its own cause is the
phase in which it exceeds the others most. In profiler captures of several ranks, collectives are matched: the others
wait at least 5 % of the time for the rank that comes last, added up over those in which it does.

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


def check_traces(traces: Traces) -> Finding | None:
    """Decide COMM002 for captures: others wait in collectives for the one that comes last."""
    if not traces.stragglers:
        return None
    late = traces.stragglers[0]
    share = spans.waiting_share(traces, late.rank)
    if share < _LEAST:
        return None
    gain = gain_of_removing(share, 0.5, 1.0)
    came = f"rank {late.rank} comes last in {late.last_in} of {late.of} collectives"
    together = units.seconds(late.caused_ns / 1e9)
    waited = f"the others wait {together} for it together, {units.percent(late.share)} of all waiting"
    return Finding(
        code="COMM002",
        name="rank-straggling",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high" if late.last_in >= _OFTEN else "medium",
        time_share=share,
        gain=gain,
        ranks=[late.rank],
        evidence=[
            Evidence(text=came, value=late.last_in / late.of, unit="share of collectives"),
            Evidence(text=waited, value=late.caused_ns / 1e9, unit="s"),
        ],
        remedies=[
            Remedy(
                id="ranks.balance", safety="exact", change=f"see what rank {late.rank} does before it comes", gain=gain
            )
        ],
        summary=f"rank {late.rank} makes the others wait {units.percent(share)} of the time",
    )


RULE = Rule(code="COMM002", name="rank-straggling", page=PAGE, check=check, check_traces=check_traces)
