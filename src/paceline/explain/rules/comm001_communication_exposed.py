"""COMM001: is communication between ranks not hidden behind compute?"""

from __future__ import annotations

from paceline import units
from paceline.explain import spans, words
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.ranks import straggler, syncs_too_often
from paceline.explain.rules import Rule
from paceline.traces.many import Traces

_LEAST = 0.08

PAGE = """
## What it means

Ranks exchange gradients (or parameters), and the exchange is not covered by computing: all of them wait for the
network together.

## How it is decided

Collectives, and time blocked inside forward and backward of a distributed run, take at least 8 % of step time
on every rank, and the ranks are busy for about equally long (otherwise see COMM002, where one makes the others
wait). In profiler captures, communication that no compute kernel runs beside takes as much of the time between the
first GPU event and the last, less what ranks wait for a straggler.

## What helps

`ddp.bucket_cap_mb`: other bucket sizes overlap better. `ddp.compress`: send gradients in 16 bits.
`batch.accumulate`: exchange less often (another batch size). `layout.shard`: another layout.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMM001."""
    if len(facts.ranks) < 2 or straggler(facts) is not None or syncs_too_often(facts):
        return None
    shares = [rank.breakdown.shares["communication"] for rank in facts.ranks]
    share = min(shares)
    if share < 0.08:
        return None
    text = (
        f"communication takes {units.percent(min(shares))} to {units.percent(max(shares))} of step time "
        f"over {len(shares)} ranks"
    )
    return Finding(
        code="COMM001",
        name="communication-exposed",
        severity="critical" if share >= 0.25 else "warning",
        confidence="medium",
        time_share=share,
        gain=gain_of_removing(share, 0.2, 0.9),
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            Evidence(text=text, value=share, unit="share of step time"),
            words.step_time(facts.first.breakdown.step_s),
        ],
        remedies=[
            Remedy(
                id="ddp.compress",
                safety="numeric",
                change="compress gradients to 16 bits (a DDP communication hook)",
                gain=gain_of_removing(share, 0.1, 0.5),
            ),
            Remedy(
                id="ddp.bucket_cap_mb",
                safety="numeric",
                change="try other gradient bucket sizes (bucket_cap_mb)",
                gain=gain_of_removing(share, 0.0, 0.4),
            ),
            Remedy(
                id="batch.accumulate",
                safety="semantic",
                change="accumulate gradients over more micro-steps",
                gain=gain_of_removing(share, 0.4, 0.9),
            ),
        ],
        summary=f"ranks wait for communication {units.percent(share)} of the time",
    )


def check_traces(traces: Traces) -> Finding | None:
    """Decide COMM001 for captures: communication that no compute hides, less what is waiting for the last to come."""
    ranks = [rank for rank in spans.timed(traces) if rank.breakdown.communication_ns]
    if not ranks:
        return None
    exposed = [spans.share(rank, lambda one: one.breakdown.exposed_communication_ns) for rank in ranks]
    share = min(exposed) if not traces.stragglers else max(0.0, min(exposed) - spans.waiting_share(traces))
    if share < _LEAST:
        return None
    gain = gain_of_removing(share, 0.2, 0.9)
    compress = Remedy(
        id="ddp.comm_hook",
        safety="numeric",
        change="compress gradients to 16 bits",
        gain=gain_of_removing(share, 0.1, 0.5),
    )
    buckets = Remedy(
        id="ddp.bucket_cap_mb",
        safety="numeric",
        change="try other gradient bucket sizes (bucket_cap_mb)",
        gain=gain_of_removing(share, 0.0, 0.4),
    )
    return Finding(
        code="COMM001",
        name="communication-exposed",
        severity="critical" if share >= 0.25 else "warning",
        confidence="high" if len(ranks) > 1 else "medium",
        time_share=share,
        gain=gain,
        ranks=spans.numbers(ranks),
        evidence=[spans.cited(rank, one, "exposed communication") for rank, one in zip(ranks, exposed, strict=True)][
            :8
        ],
        remedies=[compress, buckets],
        summary=f"communication that no compute hides takes {units.percent(share)} of the time",
    )


RULE = Rule(code="COMM001", name="communication-exposed", page=PAGE, check=check, check_traces=check_traces)
