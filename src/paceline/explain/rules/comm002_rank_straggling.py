"""COMM002: one rank makes the others wait."""

from __future__ import annotations

from paceline.core import units
from paceline.core.statistics import Interval
from paceline.explain.analysis import captures as spans
from paceline.explain.analysis.gains import at_most, saving
from paceline.explain.analysis.ranks import straggler
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.traces.analyze.ranks import Traces

_LEAST = 0.05
_OFTEN = 3

PAGE = """
## What it means

Synchronous training runs at the speed of its slowest rank. One rank computes for longer than the others, and the other
ranks wait for it whenever ranks communicate.

## How it is detected

The busy time of a rank is its step time without communication. Paceline reports `rank-straggling` if the busy time of
the slowest rank exceeds the median busy time of the other ranks by at least 10% of step time, and if the other ranks
spend about that much more time in communication. The finding is not reported if other programs keep the slowest rank
from the CPU during at least half of the difference. The finding names the phase of a step in which the slowest rank
loses most time.

In profiler captures of several ranks, Paceline matches each collective operation across the ranks. The rank that
arrives last at a collective operation makes the other ranks wait. Paceline reports `rank-straggling` if the ranks wait
for the same rank during at least 5% of the time in total.

The expected gain is the speed-up if the slowest rank were as fast as the other ranks. For the lower end, that is as
fast as the slowest other rank; for the upper end, as fast as their median.

## What helps

- `ranks.balance`: find out why the slowest rank needs more time in the phase that the finding names, and give every
  rank the same amount of work.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMM002, or None if it does not apply."""
    late = straggler(analysis)
    if late is None:
        return None
    share = late.excess_s / late.step_s
    saved = Interval(
        value=share, low=late.least_excess_s / late.step_s, high=late.most_excess_s / late.step_s, count=late.steps
    )
    gain = saving(saved)
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
                text=f"rank {late.rank} is busy for {units.seconds(late.own_s)} per step, and the other ranks for "
                f"{units.seconds(late.own_s - late.excess_s)} (median)",
                value=late.excess_s,
                unit="s",
            ),
            Evidence(
                text=f"{units.percent(late.phase_share)} of the difference in busy time is in the {late.phase} phase "
                f"of rank "
                f"{late.rank}{late.where}",
                value=late.phase_share,
                unit="share of the difference",
            ),
            Evidence(
                text=f"the other ranks spend {units.percent(late.others_waiting)} of a step in communication, and "
                f"rank {late.rank} spends {units.percent(late.waiting)}",
                value=late.others_waiting,
                unit="share of step time",
            ),
        ],
        remedies=[
            Remedy(
                id="ranks.balance",
                safety="exact",
                change=f"make the {late.phase} phase of rank {late.rank} faster{late.where}",
                gain=gain,
            )
        ],
        summary=f"rank {late.rank} makes the other ranks wait {units.percent(share)} of the time, because rank "
        f"{late.rank} is slower in the {late.phase} phase{late.where}",
    )


def check_traces(traces: Traces) -> Finding | None:
    """Return finding COMM002 for captures: ranks wait in collectives for the rank that arrives last."""
    if not traces.stragglers:
        return None
    late = traces.stragglers[0]
    share = spans.waiting_share(traces, late.rank)
    if share < _LEAST:
        return None
    gain = at_most(share)
    came = f"rank {late.rank} arrives last in {late.last_in} of {late.of} collective operations"
    together = units.seconds(late.caused_ns / 1e9)
    waited = (
        f"the other ranks wait {together} in total for this rank, {units.percent(late.share)} of the total waiting time"
    )
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
                id="ranks.balance",
                safety="exact",
                change=f"find out what rank {late.rank} does before rank {late.rank} reaches the collective operations",
                gain=gain,
            )
        ],
        summary=f"rank {late.rank} makes the other ranks wait {units.percent(share)} of the time",
    )


RULE = Rule(code="COMM002", name="rank-straggling", page=PAGE, check=check, check_traces=check_traces)
