"""COMP001: the device computes nearly all the time."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis import captures as spans
from paceline.explain.analysis.breakdown import active_share
from paceline.explain.analysis.mfu import Mfu
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding
from paceline.explain.rules import Rule
from paceline.traces.analyze.ranks import RankTrace, Traces

PAGE = """
## What it means

The forward pass, the backward pass and the optimizer take nearly all of the step time. A compute-bound program is in
the healthy state. To train faster, make the computation itself faster (precision, compilation, a faster GPU) or use
more GPUs.

## How it is detected

Paceline reports `compute-bound` if the forward pass, the backward pass and the optimizer together take at least 85% of
step time. If Paceline can read the utilization of the GPU, kernels must also run during at least 85% of the time. On a
CPU, the training thread must also run, or be ready to run, during at least 85% of the time: a thread that waits for
another Python thread computes nothing. In
profiler captures, compute kernels must run during at least 85% of the captured time on every rank; the captured time
includes the time before the first GPU event. If the model FLOP utilization (MFU) can be computed, the finding also
shows it as a percentage of the GPU's peak rate.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP001, or None if it does not apply."""
    used = [gpu.utilization for _, gpu in analysis.gpus if gpu.utilization is not None]
    if analysis.on_cpu:
        used = [share for rank in analysis.ranks if (share := active_share(rank.record)) is not None]
    busy = min([sum(analysis.shares[name] for name in ("forward", "backward", "optimizer")), *used])
    if busy < 0.85:
        return None
    rank = analysis.first
    text = (
        f"a step consists of {units.percent(analysis.shares['forward'])} forward, "
        f"{units.percent(analysis.shares['backward'])} backward and "
        f"{units.percent(analysis.shares['optimizer'])} optimizer"
    )
    return Finding(
        code="COMP001",
        name="compute-bound",
        severity="info",
        confidence="high",
        time_share=busy,
        gain=None,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            Evidence(text=text, value=busy, unit="share of step time"),
            words.step_time(rank.breakdown.step_s),
            *_mfu(rank.mfu),
        ],
        remedies=[],
        summary=f"the GPU or CPU computes during {units.percent(busy)} of the time",
    )


def _mfu(mfu: Mfu) -> list[Evidence]:
    if mfu.value is None:
        return []
    text = f"matrix products reach {units.percent(mfu.value)} of the peak rate of {mfu.source} (MFU, 1 step profiled)"
    return [Evidence(text=text, value=mfu.value, unit="MFU")]


def _busy(rank: RankTrace) -> float:
    """Return the share of time in which compute kernels run. The time before the first GPU event counts too."""
    return rank.breakdown.compute_ns / (rank.breakdown.span_ns + rank.outside_ns)


def check_traces(traces: Traces) -> Finding | None:
    """Return finding COMP001 for captures: compute kernels run nearly all the time on every rank."""
    ranks = spans.timed(traces)
    busy = min((_busy(rank) for rank in ranks), default=0.0)
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
        summary=f"compute kernels run during {units.percent(busy)} of the time",
    )


RULE = Rule(code="COMP001", name="compute-bound", page=PAGE, check=check, check_traces=check_traces)
