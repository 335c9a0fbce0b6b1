"""COMP002: the host issues many small operations too slowly."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis import captures as spans
from paceline.explain.analysis.breakdown import profiled_part
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.profiler_window import ProfilerWindow
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis, waits_for_host
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.traces.analyze.path_summary import HOST
from paceline.traces.analyze.ranks import Traces
from paceline.traces.capture import COMPUTE

_WORTH = 0.05  # least share of step time
_IDLE_FOR_THE_HOST = 0.15  # least share of a capture in which the GPU is idle because of the host
_IDLE_FOR_THE_HOST_IF_REPLAYED, _GAIN_IF_REPLAYED = 0.08, 1.08  # the same if a replay shows a gain
_SHORT_S = 100e-6  # a longer mean duration of compute kernels gives the host enough time to launch the next kernel

PAGE = """
## What it means

A step consists of many small operations. Most of the time is spent on launching small operations (Python code, operator
dispatch, autograd, kernel launches), not on computing the operations.

## How it is detected

Paceline reports `launch-bound` if a profiled step launches at least 200 operators, and if the forward and backward pass
take at least 40% of step time. On a CPU, operators shorter than 20 µs, together with the Python code between operators,
must take at least half of the time of the forward and backward pass. If the program trains models of several sizes one
after the other, only the time of those that were profiled counts.

On a GPU, CUDA events measure how much later the GPU finishes a forward or backward pass than the host finishes
launching it. The delay of the GPU behind the host must be less than a tenth of the time of the pass (median of at least
eight measurements). A short delay means that the GPU always waits for the host.

In profiler captures, Paceline reports `launch-bound` if the GPU is idle during at least 15% of the time because the
host has not launched the next kernel, and if compute kernels take less than 100 µs on average. 8% is enough if a replay
of the capture without the host's work is at least 1.08x faster. Idle time while a batch is fetched or during
synchronizing calls is not included.

The page [devices](../reference/devices.md) lists the hardware on which the finding `launch-bound` was tested.

## What helps

- `compute.compile`: `torch.compile` fuses small operations and removes the Python code between them.
- `compute.batch_ops`: one batched operation replaces a Python loop over rows or attention heads.
- `batch.size`: with a larger batch, each operation computes longer, but takes equally long to launch.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP002, or None if it does not apply."""
    rank = analysis.first
    window = rank.window
    if window is None:
        return None
    compute = analysis.shares["forward"] + analysis.shares["backward"]
    share = _share_on_cpu(window, compute) if analysis.on_cpu else compute if waits_for_host(rank) else None
    if share is None or window.operators_per_step < 200 or compute < 0.4:
        return None
    share *= profiled_part(rank.record)
    if share < _WORTH:
        return None
    mean = window.operator_s / max(1.0, sum(o.count for o in window.operators))
    text = (
        f"a step runs {window.operators_per_step:,.0f} operators, which take {units.seconds(mean)} on "
        f"average ({units.count(window.steps, 'step')} profiled)"
    )
    gain = at_most(share)
    return Finding(
        code="COMP002",
        name="launch-bound",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=[
            Evidence(text=text, value=window.operators_per_step, unit="operators per step"),
            words.share_of_step(share, "launching small operators, including the Python code between them,"),
            *_lag(rank),
        ],
        remedies=[
            Remedy(
                id="compute.batch_ops",
                safety="numeric",
                change="replace loops of small operations with batched operations",
                gain=gain,
            ),
            Remedy(
                id="compute.compile",
                safety="numeric",
                change="torch.compile(model)",
                gain=at_most(share),
            ),
        ],
        summary=f"a step runs {window.operators_per_step:,.0f} small operators, and launching them takes longer than "
        f"computing them",
    )


def _share_on_cpu(window: ProfilerWindow, compute: float) -> float | None:
    filled = window.operator_s / max(window.wall_s, 1e-9)
    small = window.tiny_share * filled + max(0.0, compute - filled)
    return min(small, compute) if small >= 0.5 * compute else None


def _lag(rank: RankAnalysis) -> list[Evidence]:
    told = rank.record.summary.get("device") or {}
    lag = (told.get("lag_s") or {}).get("backward")
    if lag is None:
        return []
    text = f"the GPU finishes the backward pass only {units.seconds(lag)} after the host has launched it"
    text += f" ({told.get('lag_count')} steps)"
    return [Evidence(text=text, value=float(lag), unit="s")]


def check_traces(traces: Traces) -> Finding | None:
    """Return finding COMP002 for captures: the GPU is idle because the host has not launched the next kernel."""
    found = spans.worst(traces, lambda one: one.idle.host_ns)
    if found is None or found[1] < _IDLE_FOR_THE_HOST_IF_REPLAYED:
        return None
    rank, share = found
    gain = spans.gain_without([rank], HOST, share)
    if share < _IDLE_FOR_THE_HOST and (HOST not in rank.without or gain.high < _GAIN_IF_REPLAYED):
        return None
    kernels = [kernel for kernel in rank.kernels if kernel.class_ == COMPUTE]
    count = sum(kernel.count for kernel in kernels)
    mean_s = sum(kernel.total_ns for kernel in kernels) / max(1, count) / 1e9
    if not count or mean_s > _SHORT_S:
        return None  # without kernels, a capture does not show the work of the GPU
    text = f"a compute kernel takes {units.seconds(mean_s)} on average ({count:,} kernels)"
    return Finding(
        code="COMP002",
        name="launch-bound",
        severity="critical" if share >= 0.5 else "warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=spans.numbers([rank]),
        evidence=[
            spans.cited(rank, share, "waiting for the host to launch the next kernel"),
            Evidence(text=text, value=mean_s, unit="s"),
        ],
        remedies=[Remedy(id="compute.compile", safety="numeric", change="torch.compile(model)", gain=gain)],
        summary=f"the GPU is idle during {units.percent(share)} of the time because the host has not launched the "
        f"next kernel",
    )


RULE = Rule(code="COMP002", name="launch-bound", page=PAGE, check=check, check_traces=check_traces)
