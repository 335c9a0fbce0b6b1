"""COMP002: are there so many tiny operations that issuing them is the work?"""

from __future__ import annotations

from paceline import units
from paceline.explain import spans, words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.window import Window
from paceline.traces.many import Traces
from paceline.traces.model import COMPUTE

_LEAST_LAGS = 8
_BEHIND = 0.1
_IDLE_FOR_THE_HOST = 0.15  # of a capture
_SHORT_S = 100e-6  # of a compute kernel: where they take longer, the host can launch them in time

PAGE = """
## What it means

The step consists of very many small operations. The time goes into issuing each of them (Python, dispatch,
autograd, a kernel launch), not into arithmetic.

## How it is decided

In the profiler window a step issues at least 200 operators, and operators of less than 20 µs on average take at
least half of all operator time, or operators together fill less than half of the compute phases (the rest is
Python between them). On a GPU, instead of operator times, its events decide: when the host has issued the last
operation of a forward and of a backward, the GPU is behind by less than a tenth of that phase (median of at
least eight), so it always waits for the host. In profiler captures, the GPU is idle for at least 15 % of the time
before the launch of what comes next, beside fetching batches and calls that wait, and compute kernels take less
than 100 µs on average. A tenth leaves room for the drift of the two clocks. No GPU has
been seen by the authors.

## What helps

`compute.compile`: `torch.compile` fuses chains of small operations and drops the Python between them.
`compute.batch_ops`: replace loops over rows or heads by one batched operation. `batch.larger`: a larger batch
makes every operation larger.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP002."""
    rank = facts.first
    window = rank.window
    if window is None:
        return None
    compute = facts.shares["forward"] + facts.shares["backward"]
    share = _share_on_cpu(window, compute) if facts.on_cpu else _share_on_gpu(rank, compute)
    if share is None or window.operators_per_step < 200 or compute < 0.4:
        return None
    mean = window.operator_s / max(1.0, sum(o.count for o in window.operators))
    text = (
        f"a step issues {window.operators_per_step:,.0f} operators of {units.seconds(mean)} each on "
        f"average ({window.steps} steps profiled)"
    )
    gain = gain_of_removing(share, 0.15, 0.75)
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
            words.share_of_step(share, "issuing small operators and the Python between them"),
            *_lag(rank),
        ],
        remedies=[
            Remedy(
                id="compute.batch_ops",
                safety="numeric",
                change="replace loops of small operations by batched ones",
                gain=gain,
            ),
            Remedy(
                id="compute.compile",
                safety="numeric",
                change="torch.compile(model)",
                gain=gain_of_removing(share, 0.1, 0.6),
            ),
        ],
        summary=f"a step issues {window.operators_per_step:,.0f} small operators; issuing them is the work",
    )


def _share_on_cpu(window: Window, compute: float) -> float | None:
    filled = window.operator_s / max(window.wall_s, 1e-9)
    small = window.tiny_share * filled + max(0.0, compute - filled)
    return min(small, compute) if small >= 0.5 * compute else None


def _share_on_gpu(rank: RankFacts, compute: float) -> float | None:
    """Return the compute share when the GPU is never behind the host; None when it is, or is not known to be."""
    told = rank.record.summary.get("device") or {}
    lags, steps = told.get("lag_s") or {}, max(1, len(rank.rows))
    if int(told.get("lag_count") or 0) < _LEAST_LAGS:
        return None
    phases = {name: rank.breakdown.seconds[name] / steps for name in ("forward", "backward")}
    follows = all(name in lags and float(lags[name]) < _BEHIND * spent for name, spent in phases.items())
    return compute if follows else None


def _lag(rank: RankFacts) -> list[Evidence]:
    told = rank.record.summary.get("device") or {}
    lag = (told.get("lag_s") or {}).get("backward")
    if lag is None:
        return []
    text = f"when a backward has been issued, the GPU is {units.seconds(lag)} behind ({told.get('lag_count')} steps)"
    return [Evidence(text=text, value=float(lag), unit="s")]


def check_traces(traces: Traces) -> Finding | None:
    """Decide COMP002 for captures: the GPU has done all there was, and the host has not launched what comes next."""
    found = spans.worst(traces, lambda one: one.idle.host_ns)
    if found is None or found[1] < _IDLE_FOR_THE_HOST:
        return None
    rank, share = found
    kernels = [kernel for kernel in rank.kernels if kernel.class_ == COMPUTE]
    count = sum(kernel.count for kernel in kernels)
    mean_s = sum(kernel.total_ns for kernel in kernels) / max(1, count) / 1e9
    if not count or mean_s > _SHORT_S:
        return None  # without kernels the capture does not show what the GPU did
    gain = gain_of_removing(share, 0.3, 0.9)
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
            spans.cited(rank, share, "the host launching what the GPU has to do next"),
            Evidence(text=text, value=mean_s, unit="s"),
        ],
        remedies=[Remedy(id="compute.compile", safety="numeric", change="torch.compile(model)", gain=gain)],
        summary=f"the GPU is idle {units.percent(share)} of the time because the host has launched nothing yet",
    )


RULE = Rule(code="COMP002", name="launch-bound", page=PAGE, check=check, check_traces=check_traces)
