"""COMP001: does the device work nearly all the time?"""

from __future__ import annotations

from paceline import units
from paceline.explain import spans, words
from paceline.explain.facts import Facts
from paceline.explain.mfu import Mfu
from paceline.explain.model import Evidence, Finding
from paceline.explain.rules import Rule
from paceline.traces.many import Traces

PAGE = """
## What it means

Nothing holds the device up: forward, backward and optimizer fill the step. This is the healthy state; going
faster now means computing faster (precision, compilation, a better device) or computing on more devices.

## How it is decided

Forward, backward, optimizer and copies that overlap with them take at least 85 % of step time; on a GPU whose
utilization can be read, some kernel also runs in at least 85 % of the time. In profiler captures, compute
kernels run in at least 85 % of the time between the first GPU event and the last, on every rank. Where it can be
worked out, the model FLOP utilisation (MFU) says how much of the card's peak rate is used.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP001."""
    busy = min([sum(facts.shares[name] for name in ("forward", "backward", "optimizer")), *_utilization(facts)])
    if busy < 0.85:
        return None
    rank = facts.first
    text = (
        f"a step has {units.percent(facts.shares['forward'])} forward, "
        f"{units.percent(facts.shares['backward'])} backward and {units.percent(facts.shares['optimizer'])} optimizer"
    )
    return Finding(
        code="COMP001",
        name="compute-bound",
        severity="info",
        confidence="high",
        time_share=busy,
        gain=None,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            Evidence(text=text, value=busy, unit="share of step time"),
            words.step_time(rank.breakdown.step_s),
            *_mfu(rank.mfu),
        ],
        remedies=[],
        summary=f"the device computes {units.percent(busy)} of the time",
    )


def _utilization(facts: Facts) -> list[float]:
    return [gpu.utilization for _, gpu in facts.gpus if gpu.utilization is not None]


def _mfu(mfu: Mfu) -> list[Evidence]:
    if mfu.value is None:
        return []
    text = f"matrix work reaches {units.percent(mfu.value)} of the peak of {mfu.source} (MFU; 1 step profiled)"
    return [Evidence(text=text, value=mfu.value, unit="MFU")]


def check_traces(traces: Traces) -> Finding | None:
    """Decide COMP001 for captures: compute kernels run nearly all the time on every rank."""
    ranks = spans.timed(traces)
    busy = min((spans.share(rank, lambda one: one.breakdown.compute_ns) for rank in ranks), default=0.0)
    if busy < 0.85:
        return None
    return Finding(
        code="COMP001",
        name="compute-bound",
        severity="info",
        confidence="high",
        time_share=busy,
        gain=None,
        ranks=spans.numbers(ranks),
        evidence=[spans.cited(ranks[0], busy, "computing")],
        remedies=[],
        summary=f"compute kernels run {units.percent(busy)} of the time",
    )


RULE = Rule(code="COMP001", name="compute-bound", page=PAGE, check=check, check_traces=check_traces)
